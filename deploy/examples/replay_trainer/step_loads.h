// A recorded router trace, replayed step by step: what each rank's router sends to each expert.
#ifndef EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_STEP_LOADS_H_
#define EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_STEP_LOADS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/client.h"
#include "client/rows/control/control_channel.h"
#include "placement/load.h"
#include "placement/split/batch_split.h"

namespace eplb {

// Tokens of the steps [first_step, last_step] together.
struct RecordedWindow {
  int64_t first_step = 0;
  int64_t last_step = 0;
  LoadMatrix counts;  // [L, E]
};

// Cuts windows into steps and steps into ranks so that every token of the trace appears exactly
// once: the steps of a window sum to the window, the ranks of a step sum to the step. A run longer
// than the trace starts it again.
class StepLoads {
 public:
  // errors: InvalidArgument when there is no window, shapes differ, or the windows leave a gap or
  // overlap.
  static absl::StatusOr<StepLoads> Make(std::vector<RecordedWindow> windows);

  int32_t num_layers() const { return static_cast<int32_t>(windows_.front().counts.rows()); }
  int32_t num_experts() const { return static_cast<int32_t>(windows_.front().counts.cols()); }
  int64_t num_steps() const;

  // [L, E], all ranks together; step >= 0.
  LoadMatrix Total(int64_t step) const;
  // The part of `total` that rank `rank` of `world_size` routes.
  static LoadMatrix OfRank(const LoadMatrix& total, int32_t rank, int32_t world_size);

 private:
  explicit StepLoads(std::vector<RecordedWindow> windows) : windows_(std::move(windows)) {}

  std::vector<RecordedWindow> windows_;
};

// What each GPU of the demonstration job computes in a step, and how balanced that is.

// Tokens that this rank's GPU computes in each layer when the split among replicas is equal.
std::vector<double> OwnGpuLoads(const LoadMatrix& total, const PlacementView& placement);

// Splits a step's batches exactly, one in each layer, under the placement in force.
class StepSplitter {
 public:
  explicit StepSplitter(int32_t num_gpus) : num_gpus_(num_gpus) {}

  // [L * S], the tokens of each slot, row by row; valid until the next call. total: [L, E], all
  // ranks together. Prepares the placement again when its version is another than in the call
  // before. errors: those of SplitGraph::Make and BatchSplitter::Split.
  absl::StatusOr<std::span<const int64_t>> Split(const LoadMatrix& total,
                                                 const PlacementView& placement);

 private:
  const int32_t num_gpus_;
  int64_t version_ = -1;
  std::optional<SplitGraph> graph_;
  std::unique_ptr<BatchSplitter> splitter_;
  std::vector<int64_t> quotas_;
};

// Tokens that this rank's GPU computes in each layer, by such quotas.
std::vector<double> OwnGpuLoads(std::span<const int64_t> quotas, const PlacementView& placement);

// The loads of all GPUs in every layer, as the ranks measured them.
struct MeasuredLoads {
  std::optional<double> balancedness;  // mean over layers with load; none without tokens
  double slowdown = 1;     // sum of peaks / sum of means: of the step against a balanced one
  double peak_tokens = 0;  // tokens of the layers' fullest GPUs, summed
};

// A rank whose GPU takes `factor` times as long for a token; -1: none.
struct SlowRank {
  int32_t rank = -1;
  double factor = 1;

  double FactorOf(int32_t other) const { return other == rank ? factor : 1; }
};

// gathered: [world_size, num_layers], doubles as bits. slow: changes the slowdown alone.
MeasuredLoads MeasureLoads(std::span<const int64_t> gathered, int32_t num_layers,
                           int32_t world_size, const SlowRank& slow = {});

// The demonstration job's own collectives: stands for the all-to-all that keeps a real trainer's
// ranks in step.

// Everybody's values in rank order, [world_size * values.size()]; also a barrier. Every value <
// INT64_MAX, the same number of them on every rank. errors: as ControlChannel::AllReduceMin.
absl::StatusOr<std::vector<int64_t>> GatherNumbers(ControlChannel& channel,
                                                   std::span<const int64_t> values,
                                                   absl::Duration timeout);

}  // namespace eplb

#endif  // EPLB_DEPLOY_EXAMPLES_REPLAY_TRAINER_STEP_LOADS_H_
