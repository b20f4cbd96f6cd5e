// The state of an eplb_plan.
#pragma once

#include <memory>
#include <optional>

#include "absl/status/statusor.h"

#include "client/c/eplb_plan.h"
#include "placement/evaluate.h"
#include "placement/load.h"
#include "placement/placement.h"

// The struct of the ABI is in no namespace. Threads: immutable.
// NOLINTNEXTLINE(readability-identifier-naming)
struct eplb_plan {
  eplb::Placement placement;
  std::optional<eplb::Evaluation> evaluation;  // absent if the input was no load
};

namespace eplb::c {

// Plans with DeepSeek's own function. errors: InvalidArgument, naming the numbers.
absl::StatusOr<std::unique_ptr<eplb_plan>> Rebalance(const eplb_rebalance_options* options,
                                                     const float* weight);

// Returns the options, with defaults for fields that an older caller does not have. errors:
// InvalidArgument for a wrong struct.
absl::StatusOr<eplb_plan_options> ReadPlanOptions(const eplb_plan_options* given);
eplb_plan_options DefaultPlanOptions();

// errors: InvalidArgument for shapes, values out of range and input that the policy rejects.
absl::StatusOr<std::unique_ptr<eplb_plan>> SolvePlan(const eplb_plan_options& options,
                                                     const Load& load);

// Makes a plan of the placement `previous`. errors: InvalidArgument for wrong shapes and maps.
absl::StatusOr<std::unique_ptr<eplb_plan>> PlanFromMaps(const eplb_plan_options& options);

}  // namespace eplb::c
