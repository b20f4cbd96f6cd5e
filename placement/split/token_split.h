// The best shares of an expert's tokens among its replicas, for a placement that is given.
#ifndef EPLB_PLACEMENT_SPLIT_TOKEN_SPLIT_H_
#define EPLB_PLACEMENT_SPLIT_TOKEN_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

struct TokenSplit {
  // [L, S]: the fraction of its expert's tokens that a slot takes. Each is in 0..1 and those of an
  // expert sum to 1; a slot without an expert has 0.
  RealMatrix shares;
  std::vector<double> max_gpu_load;  // [L], tokens / speed
};

// 1 / (replicas of its expert) for every slot: what engines do that cannot weight replicas.
RealMatrix EqualShares(const Placement& placement);

// Shares with the least possible max GPU load of every layer, exact but for rounding (about 1e-14).
// Of the many such shares: an expert keeps equal ones where its tokens need not move, and all do
// where the equal split is best already; those on one GPU are equal; an expert without load (or
// with less than 1e-280 of the layer's heaviest) has equal shares. Equal input gives equal bits.
// The light GPUs are not evened out among themselves: shares from a past window are rather kept
// near equal.
// speeds: null for GPUs that are all usable and equally fast.
// errors: InvalidArgument when load and placement differ in layers or experts, or placement and
// speeds in GPUs; for an expert on an unusable GPU, and a load / speed above double's range.
// source and cost: LayerFlow; threads: safe, no state.
absl::StatusOr<TokenSplit> SplitOptimally(const Load& load, const Placement& placement,
                                          const GpuSpeeds* speeds = nullptr);

// The least maximum GPU load that one layer of a fixed placement allows, by maximum flow.

// Solves layers of one shape one after the other: Start, Add every expert, Minimise, WriteShares.
// Holds the scratch memory, so that layers cost no allocation. Threads: one at a time.
//
// Problem: tokens x[e, g] >= 0 for every GPU g that holds expert e, sum over g of x[e, g] = w[e];
// minimise the largest of sum over e of x[e, g] / speed[g].
// Theory: for any set Q of GPUs the tokens of the experts that only Q holds must be done by Q, so
// no split is below their sum / speed(Q); by max-flow/min-cut the largest of these ratios is
// reached. Method: Newton on these cuts (Dinkelbach). For a trial maximum, which starts at the
// mean, push what GPUs have above it along shortest paths of experts to GPUs with room (Dinic). If
// some is left, the GPUs that can still be reached from it are a set Q whose ratio is above the
// trial: raise the trial to it and go on from the same flow. The speed of Q falls from step to
// step, so there are at most G + 1 of them; 1 to 5 are usual. Only experts that several GPUs hold
// enter the flow. cost: O(E + S) a layer, and for r replicas of replicated experts O(G * r) a phase
// of Dinic in the worst case; r / 2 steps of some nanoseconds is usual.
class LayerFlow {
 public:
  enum class Search { kFastest, kLists };

  // speeds: [G]; a GPU of speed 0 may hold no expert that is added. gpu_of_slot: [S]. search: lists
  // whatever G, for tests.
  LayerFlow(std::vector<double> speeds, std::vector<int32_t> gpu_of_slot,
            Search search = Search::kFastest);

  // Forgets the layer before.
  void Start();
  // REQUIRES: tokens > 0, of a size whose sum over experts is finite; slots is not empty, outlives
  // WriteShares, and no slot is given twice.
  void Add(double tokens, std::span<const int32_t> slots);

  // Finds the flow and returns its largest GPU load. Starts from the equal split and moves only
  // what is above the least maximum: an expert whose tokens need not move keeps its equal shares.
  double Minimise();
  // Writes the shares of the experts that do not keep equal ones; shares: [S].
  void WriteShares(std::span<double> shares) const;

 private:
  // What one GPU takes of one expert.
  struct Part {
    int32_t gpu;
    int32_t expert;
    double equal;   // tokens under the equal split
    double tokens;  // now
  };
  // A replicated expert of the layer; its parts are neighbours, its slots as they were given.
  struct Expert {
    double tokens;
    size_t first_part;
    size_t first_slot;
    std::span<const int32_t> slots;
  };
  // From a GPU out of its part `out` into the GPU of part `in`, both of one expert.
  struct Step {
    size_t out;
    size_t in;
  };

  size_t num_gpus() const { return speeds_.size(); }
  std::span<Part> PartsOf(size_t expert);
  std::span<const Part> PartsOf(size_t expert) const;
  double LeastImaginable() const;
  void IndexPartsByGpu();
  void SpreadEqually();
  bool Overloaded(size_t gpu) const { return room_[gpu] < -tolerance_[gpu]; }
  // False when some GPU stays above `peak`; the levels then mark the reachable set.
  bool Push(double peak);
  double RatioOfReached() const;

  // Push along lists.
  bool PushByLists();
  bool FindLevels();
  bool PushFrom(size_t source);
  bool NextStep(size_t gpu, Step& step);
  void MoveAlongPath(size_t source, size_t sink);

  // Push on sets of at most 64 GPUs.
  bool PushByMasks();
  void FindReach(size_t gpu);
  void MarkReached(uint64_t reached);
  void PushFromByMasks(size_t source, uint64_t& roomy);
  Step LargestStep(size_t from, size_t to) const;
  void MoveAlongGpus(uint64_t& roomy);

  std::vector<double> speeds_;        // [G]
  std::vector<int32_t> gpu_of_slot_;  // [S]
  bool use_masks_;
  std::vector<double> fixed_;    // [G], tokens of experts that only this GPU holds
  std::vector<Expert> experts_;  // and one more that ends the last one's parts and slots
  std::vector<Part> parts_;
  std::vector<size_t> part_of_slot_;    // of the replicated experts' slots, expert by expert
  std::vector<size_t> part_on_gpu_;     // [G], scratch of Add
  std::vector<size_t> first_on_gpu_;    // [G + 1] into gpu_parts_
  std::vector<size_t> gpu_parts_;       // indices of parts_, GPU by GPU
  std::vector<double> room_;            // [G], tokens below the trial maximum; above it if negative
  std::vector<double> tolerance_;       // [G], tokens above it that count as rounding
  std::vector<int32_t> gpu_level_;      // [G], steps from an overloaded GPU; -1 is not reached
  std::vector<int32_t> expert_level_;   // likewise, of the GPU that reached it
  std::vector<size_t> next_of_gpu_;     // [G], Dinic's current arcs: positions in gpu_parts_
  std::vector<size_t> next_of_expert_;  // and in parts_
  std::vector<size_t> queue_;
  std::vector<Step> path_;
  std::vector<uint64_t> holders_;  // the GPUs of each expert
  std::vector<uint64_t> reach_;    // [G], the GPUs that its tokens could go to
  std::vector<uint64_t> levels_;   // the GPUs of each level that may still lead to room
  std::vector<size_t> gpu_path_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SPLIT_TOKEN_SPLIT_H_
