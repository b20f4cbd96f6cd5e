// Figures of a placement that was made for several loads, as the record of its decision has them.
#pragma once

#include <span>

#include "absl/status/statusor.h"

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "placement/scenarios.h"
#include "server/core/values/record.h"

namespace eplb::core {

// Returns a plan with `scenarios` and `objective` alone. A scenario without a name is one of the
// typical loads of policy auto. Objective: the mean. errors, cost: those of two EvaluateScenarios.
absl::StatusOr<v1::Plan> ScenarioFiguresOf(std::span<const Scenario> scenarios,
                                           const Placement& incumbent, const Placement& proposed,
                                           SplitMode split, const GpuSpeeds* speeds);

}  // namespace eplb::core
