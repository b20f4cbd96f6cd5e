// The exact split of a batch: the number of an expert's tokens that each of its slots takes, so
// that the fullest GPU has the fewest tokens possible.
#pragma once

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
#include "placement/split/split_solver.h"

namespace eplb {

// The least maximum of one layer, with its proof.
struct SplitBound {
  SplitPeak peak;  // the least possible maximum of tokens / speed; speed 1 when all are equal
  // GPUs, rising, that alone hold experts with too many tokens for any lower maximum.
  std::vector<int32_t> tight_gpus;
};

// Splits batches of one placement. Threads: one at a time; several splitters can share a graph.
class BatchSplitter {
 public:
  // graph: outlives the splitter.
  explicit BatchSplitter(const SplitGraph& graph);

  // Writes the tokens of a batch that each slot takes, and returns the proof that no split has a
  // lower maximum. counts: [E], tokens of the layer's experts, summed over the EP group. quotas:
  // [S], written on success; an expert's quotas sum to its tokens. Equal shares stay if they are
  // best; the first slots by replica rank take one token more if the tokens do not divide.
  // Otherwise SplitBody::Solve chooses a split near equal shares. The quotas of an expert's slots
  // on one GPU differ by at most one token. Equal input gives equal quotas on every machine.
  // errors: InvalidArgument naming the expert: another number of counts or quotas, a layer that the
  // graph lacks, a negative count, a sum above kMaxSplitTokens. source and cost: SplitBody;
  // measured in tests/bench/batch_split_bench.cc.
  absl::StatusOr<SplitBound> Split(LayerId layer, std::span<const int64_t> counts,
                                   std::span<int64_t> quotas);

 private:
  absl::Status Check(LayerId layer, std::span<const int64_t> counts,
                     std::span<int64_t> quotas) const;

  const SplitGraph& graph_;
  std::vector<std::unique_ptr<SplitSolver>> solvers_;  // [L]
};

// Balance of a placement under one batch that is split exactly: Evaluate with the batch's quotas
// instead of equal shares. SplitOptimally splits a load of estimates.
// errors: as SplitGraph::Make and BatchSplitter::Split, or SplitOptimally. cost: theirs.
absl::StatusOr<Evaluation> EvaluateBatch(const Load& batch, const Placement& placement,
                                         const GpuSpeeds* speeds = nullptr);

// Evaluate with equal shares, or EvaluateBatch with `load` as one batch. errors and cost: theirs.
absl::StatusOr<Evaluation> EvaluateSplit(const Load& load, const Placement& placement,
                                         SplitMode split, const GpuSpeeds* speeds = nullptr);

// Evaluates several windows, each by Evaluate or, with kBatch, by EvaluateBatch. gpu_loads are
// summed over the windows. max_gpu_load is the sum of the windows' own fullest GPUs, because the
// steps of a window wait for that GPU. Balancedness is the mean of gpu_loads / max_gpu_load.
// options: kBatch ignores the shares. errors: InvalidArgument without a window; those of the two.
// cost: theirs for each window.
absl::StatusOr<Evaluation> EvaluateWindows(std::span<const Load> windows,
                                           const Placement& placement, SplitMode split,
                                           const EvaluateOptions& options = {});

// EvaluateWindows with kBatch.
absl::StatusOr<Evaluation> EvaluateBatches(std::span<const Load> batches,
                                           const Placement& placement,
                                           const GpuSpeeds* speeds = nullptr);

}  // namespace eplb
