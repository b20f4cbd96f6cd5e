// Exactly even placements where tokens may be split unevenly: one spare slot a GPU is enough.
#ifndef EPLB_PLACEMENT_SPLIT_ALIAS_PLACEMENT_H_
#define EPLB_PLACEMENT_SPLIT_ALIAS_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

struct SplitPlacement {
  Placement placement;
  // [L, S]: the fraction of its expert's tokens that a slot takes. Each is in 0..1 and those of an
  // expert sum to 1; equal for an expert without load.
  RealMatrix shares;
  // [L, S]: tokens each slot takes; an expert's sum to its count. Empty for estimates.
  LoadMatrix quotas;
};

// Whether SolveAlias takes the topology: the usable GPUs are equally fast, none has more slots than
// there are experts, and with one slot less than the fewest each they could hold every expert. So
// where all have S / G slots: S >= E + G. 288/32 and 320/64 slots / GPUs of 256 experts do, 144/16
// of 128, 512/64 of 384. speeds: null for GPUs that are all usable and equally fast. (GPUs of
// different speeds would need other means on each; there SplitOptimally does what a placement
// allows.)
bool AliasApplies(const Topology& topology, const GpuSpeeds* speeds = nullptr);
// Whether it does with each expert group on a node of its own choice: the same for every layer and
// node with the node's experts and GPUs. node_of_group: [L, K], 0..N-1. False too for a matrix of
// another shape, a node out of range, or E % K != 0. With K / N groups on every node and S / G
// slots on every GPU: S >= E + G and S / G <= E / N.
bool AliasApplies(const Topology& topology, const Eigen::Ref<const IndexMatrix>& node_of_group,
                  const GpuSpeeds* speeds = nullptr);

// A placement and shares with every usable GPU at the mean load, however skewed the load: for
// counts, every GPU's integer load is at most ceil(mean) in each layer, which is the least there is
// in whole tokens; for estimates, at most the mean but for rounding (each cell is taken as an
// integer multiple of 2^-61 or less of its layer's sum). No expert twice on a GPU. At most one
// expert of a GPU continues on a later one, so at most E + G - 1 slots take tokens. Of the others,
// which take none, each holds the expert with most load per replica that its GPU lacks. Slots of an
// unusable GPU hold -1, quota 0, share 0. Without load the experts are spread: their replica counts
// differ by at most one. The lowest slot of an expert is its primary. Deterministic.
// errors: InvalidArgument when load and topology differ in layers or experts, or AliasApplies is
// false. source and proof: AliasSolver. cost: O(L * S * log E); 58 x 256 on 288 slots and 32 GPUs
// takes about a quarter of a millisecond on one core. threads: safe, no state.
absl::StatusOr<SplitPlacement> SolveAlias(const Load& load, const Topology& topology,
                                          const GpuSpeeds* speeds = nullptr);

// As above with the experts of each group on the GPUs of its node: every GPU at the mean load of
// its node.
absl::StatusOr<SplitPlacement> SolveAlias(const Load& load, const Topology& topology,
                                          const Eigen::Ref<const IndexMatrix>& node_of_group,
                                          const GpuSpeeds* speeds = nullptr);

// An exactly even placement with split tokens for some experts on some GPUs: the core of
// alias_placement.

// Experts that may be placed on certain GPUs only: those of a whole layer, or of one node.
struct AliasDomain {
  std::span<const int32_t> experts;       // ids, each once
  std::span<const int64_t> loads;         // [E] of the layer, by id; tokens, >= 0; no sum overflows
  std::span<const int32_t> slots_of_gpu;  // of each GPU; GPUs are equally fast
};

// Whether every load on such a domain can be made exactly even without two replicas of an expert on
// one GPU: experts <= GPUs * (fewest slots of a GPU - 1), that is slots >= experts + GPUs where all
// have the same number, and no GPU has more slots than there are experts.
bool AliasFits(int64_t num_experts, std::span<const int32_t> slots_of_gpu);

// Solves domains one after the other; holds the scratch memory, so that domains cost no allocation
// once the largest was seen. Threads: one at a time.
//
// Method: the alias method of Walker and Vose, for k = fewest slots - 1 whole experts a GPU
// instead of one. Pad the experts with zeros to k * G and sort them. Take the GPUs in turn, with t
// = ceil(tokens left / GPUs left): the k lightest experts left sum to at most t and the k heaviest
// to at least t, so among the windows of k neighbours there is one, A, whose sum is at most t while
// the next one, A - a + b, has more (or A is the last). The GPU takes A whole and t - sum(A) of b.
// What is left of b is between a and b, so it takes A's place in the order: nothing is sorted
// again, and k experts for each GPU left remain. So every load, however skewed, comes out at
// ceil(mean) or below in integers, and only b is continued on a later GPU. The k neighbours below
// the gap sum to at most sum(A) and the k above it to more than t, so the next window is found
// within k + 1 slides (but once, when t falls by one, among equal experts).
class AliasSolver {
 public:
  // slots: the expert of each slot, GPU by GPU; no expert twice on a GPU, each in one slot at
  // least. quotas: the tokens it takes there; an expert's sum to its load, a GPU's to at most
  // ceil(mean). Slots that are left over get the expert with most load per replica that is not on
  // the GPU yet, with quota 0. Without load the experts are spread: their numbers of replicas
  // differ by at most one. Deterministic: equal loads in the order of `experts`. REQUIRES:
  // AliasFits; spans of the size said. cost: O(bytes of a load * experts + slots + left-over slots
  // * log experts).
  void Solve(const AliasDomain& domain, std::span<int32_t> slots, std::span<int64_t> quotas);

 private:
  // An expert in the sorted list, or a zero of the padding (expert -1).
  struct Node {
    int64_t tokens;  // still to be placed
    int32_t expert;
    int32_t before;  // in the list; 0 is its lower end
    int32_t after;   // num_nodes_ + 1 is its upper end
  };
  struct Key {
    uint64_t tokens;
    int32_t expert;
  };
  // k neighbours of the list.
  struct Window {
    int32_t first;
    int32_t last;
    int64_t tokens;
  };
  struct Replicated {
    double tokens_per_replica;
    double tokens;
    int32_t replicas;
    int32_t expert;
  };
  struct Lighter {
    bool operator()(const Replicated& a, const Replicated& b) const;
  };

  void SortByLoad(const AliasDomain& domain);
  void MakeList(const AliasDomain& domain);
  // The window of k neighbours that crosses `target`, looked for from around `near`.
  Window FindWindow(int32_t near, int32_t length, int64_t target) const;
  // Returns how many slots of the GPU are used.
  size_t FillGpu(const Window& window, int64_t target, std::span<int32_t> slots,
                 std::span<int64_t> quotas);
  void FindCandidates(size_t num_leftovers, size_t most_slots);
  void FillLeftovers(const AliasDomain& domain, std::span<int32_t> slots);

  int32_t num_nodes_ = 0;
  int32_t around_ = 0;  // where the last window was
  std::vector<Key> keys_;
  std::vector<Key> sorted_;
  std::vector<Node> nodes_;
  std::vector<size_t> used_;       // slots of each GPU
  std::vector<int32_t> replicas_;  // [E], by id, of the domain's experts
  std::vector<int32_t> held_on_;   // [E], likewise: the last GPU with left-over slots that holds it
  std::vector<Replicated> heap_;   // experts that a left-over slot may get
  std::vector<Replicated> set_aside_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SPLIT_ALIAS_PLACEMENT_H_
