// The exact split of a batch: how many of an expert's tokens each of its slots takes, so that the
// fullest GPU has the fewest. For the tokens that are there, not for those that are expected.
#ifndef EPLB_PLACEMENT_SPLIT_BATCH_SPLIT_H_
#define EPLB_PLACEMENT_SPLIT_BATCH_SPLIT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/split/split_body.h"
#include "placement/split/split_graph.h"

namespace eplb {

// The least maximum of one layer, with its proof.
struct SplitBound {
  SplitPeak peak;  // the least possible maximum of tokens / speed; speed 1 when all are equal
  // The experts that only these GPUs hold have too many tokens for any lower maximum. Rising.
  std::vector<int32_t> tight_gpus;
};

// Splits batches. Holds the scratch memory, so that a batch costs no allocation.
// Threads: one at a time; several splitters share a graph.
class BatchSplitter {
 public:
  // graph: outlives the splitter.
  explicit BatchSplitter(const SplitGraph& graph);
  ~BatchSplitter();

  // The tokens of a batch that each slot takes. counts: [E], the tokens of the layer's experts,
  // summed over the EP group; quotas: [S], written on success: those of an expert sum to its
  // tokens. Of the splits with the least maximum it is one near equal shares: where these are best
  // already they stay, the first slots by replica rank taking one more where they do not divide;
  // else SplitBody::Solve has what moves. The slots of an expert on one GPU have equal quotas but
  // for one token. Equal input gives equal quotas on every machine. errors: InvalidArgument naming
  // the expert: another number of counts or quotas, a negative count, a sum above kMaxSplitTokens.
  // `layer` must be one of the graph's. source and cost: SplitBody; measured in
  // tests/bench/batch_split_bench.cc.
  absl::Status Split(LayerId layer, std::span<const int64_t> counts, std::span<int64_t> quotas);
  // As above, with the proof that no split has a lower maximum.
  absl::StatusOr<SplitBound> SplitWithBound(LayerId layer, std::span<const int64_t> counts,
                                            std::span<int64_t> quotas);
  // The least maximum alone, equal to SplitWithBound's: for a search that compares placements.
  // errors: as Split. cost: Split's without the quotas.
  absl::StatusOr<SplitPeak> LeastPeak(LayerId layer, std::span<const int64_t> counts);

 private:
  class Solver;
  template <int kWords>
  class SolverOf;

  absl::Status Check(LayerId layer, std::span<const int64_t> counts) const;
  absl::Status Check(LayerId layer, std::span<const int64_t> counts,
                     std::span<int64_t> quotas) const;

  const SplitGraph& graph_;
  std::unique_ptr<Solver> solver_;
};

// How even a placement is when the load is one batch and is split exactly: Evaluate with the quotas
// of the batch in the place of equal shares. A load of estimates is split as SplitOptimally does.
// errors: as SplitGraph::Make and BatchSplitter::Split, or SplitOptimally. cost: theirs.
absl::StatusOr<Evaluation> EvaluateBatch(const Load& batch, const Placement& placement,
                                         const GpuSpeeds* speeds = nullptr);

// Evaluate with equal shares, or EvaluateBatch with `load` as one batch. errors and cost: theirs.
absl::StatusOr<Evaluation> EvaluateSplit(const Load& load, const Placement& placement,
                                         SplitMode split, const GpuSpeeds* speeds = nullptr);

// Several windows, each by Evaluate or, with kBatch, by EvaluateBatch: gpu_loads are summed over
// the windows, and max_gpu_load is the sum of the windows' own fullest GPUs, which is what their
// steps wait for; balancedness is the mean of the one / the other. options: the shares are not used
// with kBatch. errors: InvalidArgument without a window; those of the two. cost: theirs for each
// window.
absl::StatusOr<Evaluation> EvaluateWindows(std::span<const Load> windows,
                                           const Placement& placement, SplitMode split,
                                           const EvaluateOptions& options = {});

// EvaluateWindows with kBatch.
absl::StatusOr<Evaluation> EvaluateBatches(std::span<const Load> batches,
                                           const Placement& placement,
                                           const GpuSpeeds* speeds = nullptr);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SPLIT_BATCH_SPLIT_H_
