// Everything that can be checked and computed again about a recorded run.
#ifndef EPLB_CLIENT_CLI_RUN_REVIEW_H_
#define EPLB_CLIENT_CLI_RUN_REVIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/run_decisions.h"
#include "client/cli/run_operators.h"
#include "client/files/run_directory.h"

namespace eplb::cli {

// The run under one way to place its experts. Only the run's own row is measured; the others are
// what its loads and its steps give under their placements.
struct RunRow {
  // Over the compared steps.
  double balancedness = 1;   // mean over steps
  double slowdown = 1;       // mean over steps, as RunSeries
  double step_seconds = 0;   // mean time of a step without its boundary; 0: not known
  double total_seconds = 0;  // over all steps, without boundaries; 0: not known
  int64_t transfers = 0;
  std::optional<int64_t>
      bytes;  // between ranks; absent: the run moved nothing to tell a price from
};

// Rank 0's wall clock over all steps, checks after a switch left out.
struct RunTime {
  double measured_seconds = 0;       // boundaries included
  double boundary_seconds = 0;       // of them in StepBoundary
  double switch_seconds = 0;         // of them in the boundaries that switched
  double longest_pause_seconds = 0;  // of any rank in one boundary
  // Steps last in proportion to the load of their fullest GPUs: what they would have lasted under
  // another placement can be told.
  bool modelled = false;
  int64_t steps_over_model = 0;  // that took longer than that, for the machine was not fast enough
};

struct RunReview {
  std::vector<std::string>
      problems;  // broken invariants, figures that differ, unverified bytes; empty: all holds
  int64_t steps = 0;
  int64_t rebalances = 0;
  int64_t first_switch_step = -1;  // first step under a second placement; -1: never
  double largest_difference = 0;   // between reported and recomputed balancedness of a step
  // Compared are the steps from the first switch on (from step 0 when there was none), but for
  // those in which operators held decisions back. Where that would leave none, they stay.
  int64_t compared_first_step = 0;
  int64_t compared_steps = 0;
  RunRow run;
  RunRow unmoved;            // static layout
  RunRow policy;             // policy deepseek on the same decision windows and switch steps
  RunRow hindsight;          // policy deepseek planned for each window of steps on that very window
  int64_t window_steps = 0;  // of hindsight
  RunTime time;
  std::vector<RunDecision> decisions;
  OperatorReview operators;
  // Balancedness by step, for the picture.
  std::vector<double> run_series;
  std::vector<double> unmoved_series;
  // GPU loads, tokens summed over the steps after the first switch, of the layer that the static
  // layout balances worst.
  int32_t worst_layer = 0;
  std::vector<double> gpu_loads_unmoved;  // [G]
  std::vector<double> gpu_loads_run;      // [G]

  // Whether the comparison lacks steps in which operators held decisions back.
  bool leaves_steps_out() const { return compared_steps < steps - compared_first_step; }
};

// A figure that differs by more than this from what the run reported is a problem.
inline constexpr double kBalancednessTolerance = 1e-9;

// window_steps >= 1: the report window of the run. errors: InvalidArgument when the files
// contradict each other so that no figure can be computed.
absl::StatusOr<RunReview> ReviewRun(const RunDirectory& run, int64_t window_steps);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_RUN_REVIEW_H_
