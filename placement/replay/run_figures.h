// How well a recorded run was balanced, computed again from its loads and placements alone.
// threads: safe, no state.
#ifndef EPLB_PLACEMENT_REPLAY_RUN_FIGURES_H_
#define EPLB_PLACEMENT_REPLAY_RUN_FIGURES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/placement.h"
#include "placement/policy.h"

namespace eplb {

// A placement that a run switched to, with what was decided on.
struct RunPlacement {
  int64_t step = 0;  // the first step under it
  int64_t decided_first_step =
      0;  // steps whose summed load it was decided on; last < first: not decided
  int64_t decided_last_step = -1;
  Placement placement;
};

// Each series has one balancedness (mean over layers with load) per step.
struct RunFigures {
  std::vector<double> run;        // under the run's own placements
  std::vector<double> unmoved;    // under the static layout
  std::vector<double> policy;     // under the policy's placements, decided on the same windows, in
                                  // force from the same steps
  std::vector<double> hindsight;  // under the policy's placement for each window of steps, decided
                                  // on that very window
  int64_t first_switch_step =
      -1;  // first step under a second placement; -1: the run never switched
};

// step_loads: the load of step i at [i], beginning with step 0. placements: by rising step, the
// first at step 0. The layers that a switch changed are the layers that the policy's series
// replaces there. window_steps: of `hindsight`, >= 1. errors: InvalidArgument when placements are
// not in order, a decision lies outside the run, or shapes differ; what the policy refuses.
absl::StatusOr<RunFigures> EvaluateRun(std::span<const Load> step_loads,
                                       std::span<const RunPlacement> placements,
                                       const Policy& policy, int64_t window_steps);

// Mean of series[first..]; 1 when there is nothing.
double MeanFrom(std::span<const double> series, int64_t first);

// The sum of the loads of steps [first, last]; both within the run.
absl::StatusOr<Load> SumLoads(std::span<const Load> step_loads, int64_t first, int64_t last);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_REPLAY_RUN_FIGURES_H_
