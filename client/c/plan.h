// What is behind an eplb_plan.
#ifndef EPLB_CLIENT_C_PLAN_H_
#define EPLB_CLIENT_C_PLAN_H_

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
  std::optional<eplb::Evaluation> evaluation;  // none where the input was no load
};

namespace eplb::c {

// DeepSeek's own function. errors: InvalidArgument, naming the numbers.
absl::StatusOr<std::unique_ptr<eplb_plan>> Rebalance(const eplb_rebalance_options* options,
                                                     const float* weight);

// The options with what an older caller does not know at its default.
// errors: InvalidArgument for what is no such struct.
absl::StatusOr<eplb_plan_options> ReadPlanOptions(const eplb_plan_options* given);
eplb_plan_options DefaultPlanOptions();

// errors: InvalidArgument for shapes, values out of range and what the policy refuses.
absl::StatusOr<std::unique_ptr<eplb_plan>> SolvePlan(const eplb_plan_options& options,
                                                     const Load& load);

// The placement `previous`. errors: InvalidArgument for shapes and maps that are none.
absl::StatusOr<std::unique_ptr<eplb_plan>> PlanFromMaps(const eplb_plan_options& options);

}  // namespace eplb::c

#endif  // EPLB_CLIENT_C_PLAN_H_
