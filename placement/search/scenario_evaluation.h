// How even a placement is under each of several loads, and the proved bound of the figure.
// threads: safe, no state.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "placement/scenarios.h"
#include "placement/search/bound.h"

namespace eplb {

// The objective is made of ratios, largest GPU load / (tokens / sum of speeds). A ratio is
// 1 / balancedness if GPUs are equally fast. If they are not, the mean in a balancedness depends on
// the placement.
struct ScenarioEvaluation {
  std::vector<Evaluation> scenarios;             // [K], each on its own load
  std::vector<std::optional<double>> objective;  // [L], >= 1; absent for a layer without load
  std::optional<double> mean_objective;          // over layers with load
  // Mean over layers of the least balancedness under any scenario: no mixture of them has less.
  std::optional<double> mixtures_at_least;
};

// errors: those of CheckScenarios and EvaluateSplit. cost: K times EvaluateSplit.
absl::StatusOr<ScenarioEvaluation> EvaluateScenarios(std::span<const Scenario> scenarios,
                                                     ScenarioObjective objective,
                                                     const Placement& placement, SplitMode split,
                                                     const GpuSpeeds* speeds = nullptr);

// Returns for each layer an objective that no placement can go below: that of the bounds of the
// scenarios, or the bound of their mean where that is more. For the largest GPU load of the mean
// is at most the mean of the largest GPU loads. 0 for a layer without load.
// errors: those of CheckScenarios and LowerBounds. cost: K + 1 times LowerBounds.
absl::StatusOr<std::vector<double>> ScenarioBounds(std::span<const Scenario> scenarios,
                                                   ScenarioObjective objective,
                                                   const Topology& topology,
                                                   const BoundOptions& options = {});

}  // namespace eplb
