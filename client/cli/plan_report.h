// A plan with its figures, as values and as text.
#ifndef EPLB_CLIENT_CLI_PLAN_REPORT_H_
#define EPLB_CLIENT_CLI_PLAN_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/bound_gap.h"
#include "client/cli/frame.h"
#include "client/cli/plan_solver.h"
#include "client/cli/terminal.h"
#include "placement/crossing.h"
#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/hierarchy.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"

namespace eplb::cli {

struct PlanReport {
  std::string policy;
  Placement placement;
  std::optional<RealMatrix> shares;  // [L, S]; none: an expert's tokens are split equally
  GpuSpeeds speeds;
  Hierarchy hierarchy = Hierarchy::kNone;
  Evaluation after;
  Evaluation before;  // of the previous placement, else of the static layout
  bool has_previous = false;
  BoundGaps bound;  // proved, and how far after.max_gpu_load is above
  int64_t duplicates = 0;
  MoveSummary moves;                      // against the previous placement; zero without one
  std::optional<CrossingShare> crossing;  // of a soft hierarchy
  double solve_seconds = 0;
};

// Everything but solve_seconds. previous_shares: of the previous placement, null for equal parts.
// `before` is of GPUs that can all be used where they hold something. errors: InvalidArgument when
// shapes differ, Internal as GapsToBounds.
absl::StatusOr<PlanReport> MakePlanReport(const FrameOptions& frame, const PlanProblem& problem,
                                          PlanAnswer answer, const RealMatrix* previous_shares);

// Null for equal parts.
const RealMatrix* SharesOf(const PlanReport& report);

// One line with a newline; every number is finite.
std::string PlanReportToJson(const PlanReport& report);
// For people; no line is wider than the terminal.
std::string PlanReportToTable(const PlanReport& report, const Terminal& terminal);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_PLAN_REPORT_H_
