// From what a plan is asked for to a placement and, where tokens are split, its shares.
#ifndef EPLB_CLIENT_CLI_PLAN_SOLVER_H_
#define EPLB_CLIENT_CLI_PLAN_SOLVER_H_

#include <optional>

#include "absl/status/statusor.h"

#include "client/cli/frame.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb::cli {

// Views; all of one shape.
struct PlanProblem {
  const Load& load;
  const Topology& topology;
  const GpuSpeeds& speeds;
  const Placement* previous = nullptr;  // null: none
};

struct PlanAnswer {
  Placement placement;
  std::optional<RealMatrix> shares;  // [L, S]; none: equal parts
};

// Asks the policy. Slots of `balanced` are aligned to a previous placement, and with
// --max-moves-per-gpu a layer that would need more transfers into a GPU is `incremental`'s instead.
// `optimal_split`: `balanced` without a past gives way to the exactly even placement (SolveAlias)
// where that applies, also on some GPUs only and where duplicates are allowed; else, so for GPUs of
// different speeds, the policy's placement gets the best shares. errors: the policy's.
absl::StatusOr<PlanAnswer> SolvePlan(const FrameOptions& frame, bool optimal_split,
                                     const PlanProblem& problem);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_PLAN_SOLVER_H_
