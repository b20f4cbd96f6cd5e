// The split of a batch that moves the fewest tokens: for callers that know which rank each token is
// on, where BatchSplitter sees the sums alone.
#ifndef EPLB_PLACEMENT_SPLIT_SOURCE_SPLIT_H_
#define EPLB_PLACEMENT_SPLIT_SOURCE_SPLIT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"

#include "placement/split/batch_split.h"
#include "placement/split/split_graph.h"

namespace eplb {

// Splits batches by their sources. Holds the scratch memory. Threads: one at a time; several
// share a graph.
//
// Guarantee, exact in whole tokens: no GPU is above the least maximum and the graph's slack, as of
// BatchSplitter; of all such splits (a) the fewest tokens leave the GPU of their source, of those
// (b) the fewest leave its node, and of those (c) the fewest are above equal shares. Which of
// several such splits it is depends on the input alone. OwnQuotas then keeps as many tokens in
// place as these quotas allow, so that (a) and (b) hold for what the ranks send.
//
// Method: successive shortest paths. With tokens x at a GPU that has c of its own, (a) costs
// max(0, x - c), likewise (b) for nodes and (c) for equal shares: convex, so the optimum is that of
// a flow. It starts from the split that is best for each expert alone, and pushes what is above the
// maximum along the cheapest paths to GPUs with room; ties go to the path with fewest GPUs. All
// paths of one length are used before distances are computed again (Bellman and Ford). cost:
// O(parts * replicas) a sweep, a few sweeps a length, some tens of lengths. Measured on one core:
// 27 us a layer of 256 experts in 288 slots on 32 GPUs, 0.5 to 1.2 ms in 384 slots on 64 GPUs. That
// is 10 to 140 times BatchSplitter, which looks at no source and is for batches that cannot wait.
class SourceSplitter {
 public:
  // graph: outlives the splitter.
  explicit SourceSplitter(const SplitGraph& graph);

  // counts: [G, E], row by row, the tokens that rank g, which has GPU g, has for each expert.
  // quotas: [S], written on success; those of an expert sum to its tokens, the slots of an expert
  // on one GPU have equal quotas but for one token. errors: InvalidArgument, as
  // BatchSplitter::Split, or naming source and expert for a negative count.
  absl::Status Split(LayerId layer, std::span<const int64_t> counts, std::span<int64_t> quotas);

 private:
  // An expert on one GPU. Up to `local` tokens are the GPU's own.
  struct Place {
    int32_t gpu;
    int32_t node;  // in nodes_
    int64_t tokens;
    int64_t local;
    int64_t equal;
  };
  // An expert on the GPUs of one node.
  struct NodeShare {
    int32_t node;
    int64_t tokens;
    int64_t local;
  };
  struct Step {
    size_t from;  // in places_
    size_t to;
  };

  absl::Status Sum(LayerId layer, std::span<const int64_t> counts);
  void PlaceExpert(const SplitLayer& layer, int32_t replicated, std::span<const int64_t> counts);
  void FillUpToEqual(size_t first, int32_t node, int64_t& tokens);
  void SpreadEvenly(size_t first, int32_t node, int64_t tokens);
  void Give(Place& place, int64_t tokens);
  void MakeRoom(const SplitLayer& layer, const SplitPeak& peak);
  int64_t Cost(const Step& step) const;
  int64_t Capacity(const Step& step) const;
  // Distances from the GPUs above the peak; returns that of the nearest GPU with room.
  int64_t FindDistances(const SplitLayer& layer);
  void PushFrom(const SplitLayer& layer, int32_t source, int64_t length);
  bool Advance(const SplitLayer& layer, int32_t gpu);
  void MoveAlongPath(int32_t source, int32_t sink);
  void WriteQuotas(const SplitLayer& layer, std::span<int64_t> quotas);

  const SplitGraph& graph_;
  BatchSplitter splitter_;
  std::vector<int64_t> sums_;        // [E]
  std::vector<Place> places_;        // as the layer's parts, expert by expert
  std::vector<size_t> place_of_;     // [parts], by the layer's number of a part
  std::vector<size_t> first_place_;  // [places], of the expert
  std::vector<size_t> end_place_;    // [places]
  std::vector<NodeShare> nodes_;
  std::vector<int64_t> room_;      // [G]
  std::vector<int64_t> distance_;  // [G]
  std::vector<uint8_t> is_dead_;   // [G], no path on from here
  std::vector<int32_t> queue_;
  std::vector<uint8_t> is_queued_;  // [G]
  std::vector<Step> path_;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SPLIT_SOURCE_SPLIT_H_
