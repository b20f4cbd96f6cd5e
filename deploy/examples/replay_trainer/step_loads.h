// Steps of a recorded router trace: tokens that each rank's router sends to each expert, and how
// evenly the GPUs are loaded by them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/client.h"
#include "client/rows/control/control_channel.h"
#include "placement/load.h"

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

// Returns the tokens that this rank's GPU computes in each layer if replicas take equal shares.
std::vector<double> OwnGpuLoads(const LoadMatrix& total, const PlacementView& placement);

// The loads of all GPUs in every layer, as the ranks measured them.
struct MeasuredLoads {
  std::optional<double> balancedness;  // mean over layers with load; none without tokens
  double slowdown = 1;     // sum of peaks / sum of means: of the step against a balanced one
  double peak_tokens = 0;  // tokens of the layers' fullest GPUs, summed
};

// A rank whose GPU takes `factor` times as long for a token. -1 for no rank.
struct SlowRank {
  int32_t rank = -1;
  double factor = 1;

  double FactorOf(int32_t other) const { return other == rank ? factor : 1; }
};

// gathered: [world_size, num_layers], doubles as bits. slow: changes the slowdown alone.
MeasuredLoads MeasureLoads(std::span<const int64_t> gathered, int32_t num_layers,
                           int32_t world_size, const SlowRank& slow = {});

// Returns the values of all ranks in rank order, [world_size * values.size()]. It is the job's
// all-to-all and keeps its ranks in step. values: below INT64_MAX, equally many on each rank.
// errors: as ControlChannel::AllReduceMin.
absl::StatusOr<std::vector<int64_t>> GatherNumbers(ControlChannel& channel,
                                                   std::span<const int64_t> values,
                                                   absl::Duration timeout);

}  // namespace eplb
