// Everything that can be checked and computed again about a recorded run.
#ifndef EPLB_CLIENT_CLI_RUN_REVIEW_H_
#define EPLB_CLIENT_CLI_RUN_REVIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/files/run_directory.h"

namespace eplb::cli {

struct RunReview {
  std::vector<std::string>
      problems;  // broken invariants, figures that differ, unverified bytes; empty: all holds
  int64_t steps = 0;
  int64_t rebalances = 0;
  int64_t first_switch_step = -1;  // first step under a second placement; -1: never
  double largest_difference = 0;   // between reported and recomputed balancedness of a step
  // Mean balancedness from the first switch on (from step 0 when there was none).
  double run = 1;
  double unmoved = 1;        // static layout
  double policy = 1;         // policy deepseek on the same decision windows and switch steps
  double hindsight = 1;      // policy deepseek planned for each window of steps on that very window
  int64_t window_steps = 0;  // of hindsight
  // GPU loads, tokens summed over the steps after the first switch, of the layer that the static
  // layout balances worst.
  int32_t worst_layer = 0;
  std::vector<double> gpu_loads_unmoved;  // [G]
  std::vector<double> gpu_loads_run;      // [G]
  double step_seconds = 0;                // mean wall time of a step
};

// A figure that differs by more than this from what the run reported is a problem.
inline constexpr double kBalancednessTolerance = 1e-9;

// window_steps >= 1: the report window of the run. errors: InvalidArgument when the files
// contradict each other so that no figure can be computed.
absl::StatusOr<RunReview> ReviewRun(const RunDirectory& run, int64_t window_steps);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_RUN_REVIEW_H_
