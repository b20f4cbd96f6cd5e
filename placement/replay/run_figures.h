// How well a recorded run was balanced, computed again from its loads and placements alone.
// threads: safe, no state.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/evaluate.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/policy.h"

namespace eplb {

// A placement that a run switched to, with what was decided on.
struct RunPlacement {
  int64_t step = 0;  // the first step under it
  // Steps whose summed load it was decided on. last < first: no policy decided it, as in a
  // rollback; the policy's series takes it over.
  int64_t decided_first_step = 0;
  int64_t decided_last_step = -1;
  Placement placement;
};

// The steps of a run under one way to place its experts.
struct RunSeries {
  // One figure per step: mean over layers with load; nullopt for a step without tokens.
  std::vector<std::optional<double>> balancedness;
  // One figure per step: loads of the layers' fullest GPUs / the layers' mean loads, both summed;
  // >= 1, nullopt without tokens. An expert-bound step takes this many times an even one.
  std::vector<std::optional<double>> slowdown;
  double peak_tokens = 0;  // loads of the layers' fullest GPUs, summed over layers and steps
  int64_t transfers = 0;   // experts copied into GPUs that did not hold them
};

struct RunFigures {
  RunSeries run;           // under the run's own placements, as it split its tokens
  RunSeries without_eplb;  // with one slot per expert, in order
  RunSeries unmoved;       // under the static layout, in equal shares
  RunSeries policy;  // under the policy's placements, decided on the same windows, current from
                     // the same steps, in equal shares
  // Under the policy's placement for each window of steps, decided on that very window, in equal
  // shares.
  RunSeries hindsight;
  // Empty unless the run split each step exactly. Under its own placements in equal shares, and
  // under those of `hindsight_split` for each window with each step split exactly.
  RunSeries equal_shares;
  RunSeries hindsight_split;
  int64_t first_switch_step =
      -1;  // first step under a second placement; -1: the run never switched
};

struct RunReviewOptions {
  const Policy& policy;
  int64_t window_steps = 1;  // steps in a window decided in hindsight, >= 1
  // How the run split its tokens; with kBatch each step was one batch.
  SplitMode split = SplitMode::kEqual;
  const Policy* hindsight_split = nullptr;  // not null with kBatch; it is given a window's steps
};

// step_loads: the load of step i at [i], beginning with step 0. placements: by rising step, the
// first at step 0. The layers that a switch changed are the layers that the policy's series
// replaces there. errors: InvalidArgument when placements are not in order, a decision lies outside
// the run, or shapes differ; what a policy refuses.
absl::StatusOr<RunFigures> EvaluateRun(std::span<const Load> step_loads,
                                       std::span<const RunPlacement> placements,
                                       const RunReviewOptions& options);

// Mean of those figures of `series` whose `included` is true; none when there is none. Same
// lengths.
std::optional<double> MeanOf(std::span<const std::optional<double>> series,
                             const std::vector<bool>& included);

// Steps [first, last].
struct StepSpan {
  int64_t first = 0;
  int64_t last = 0;
};

// Balancedness (mean over layers with load) of the loads that each GPU got in these steps, under
// the placements that they ran under: of the summed loads in equal shares, or with kBatch against
// the fullest GPU of each step. None when there is no load. errors: as EvaluateRun.
absl::StatusOr<std::optional<double>> MeasuredBalancedness(std::span<const Load> step_loads,
                                                           std::span<const RunPlacement> placements,
                                                           const StepSpan& steps,
                                                           SplitMode split = SplitMode::kEqual);

// Balancedness of these steps, as MeasuredBalancedness, had all of them run under one layout.
// evaluate: returns the figures of a load under the layout.
absl::StatusOr<std::optional<double>> LayoutBalancedness(
    std::span<const Load> step_loads, const StepSpan& steps, SplitMode split,
    const std::function<absl::StatusOr<Evaluation>(const Load&)>& evaluate);

// The sum of the loads of steps [first, last]; both within the run.
absl::StatusOr<Load> SumLoads(std::span<const Load> step_loads, int64_t first, int64_t last);

}  // namespace eplb
