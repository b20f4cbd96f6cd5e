// A plan with its figures, as values, as JSON and as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "client/cli/plan_solver.h"
#include "client/cli/terminal.h"
#include "placement/migration_plan.h"
#include "placement/search/node_affinity.h"

namespace eplb::cli {

// The score on the later windows of a trace of a placement that was planned on the earlier ones.
struct LaterWindows {
  Evaluation evaluation;
  int64_t planned_windows = 0;
  int64_t scored_windows = 0;
  std::string text;  // ScoredOnText
};

struct PlanReport {
  std::string policy;
  Placement placement;
  std::optional<RealMatrix> shares;  // [L, S]; absent: an expert's tokens are split equally
  GpuSpeeds speeds;
  Hierarchy hierarchy = Hierarchy::kNone;
  Evaluation after;
  Evaluation before;  // previous placement, or the static layout without one
  bool has_previous = false;
  BoundGaps bound;  // proved bounds, and how far after.max_gpu_load is above them
  int64_t duplicates = 0;
  MoveSummary moves;                      // against the previous placement; zero without one
  std::optional<CrossingShare> crossing;  // absent unless the hierarchy is soft
  // If the job splits by batch: EvaluateBatches over the windows, as `after` and `before`.
  std::optional<Evaluation> batches_after;
  std::optional<Evaluation> batches_before;
  std::optional<LaterWindows> later;  // absent if the load is one window
  double solve_seconds = 0;
};

// Fills in everything but `later` and solve_seconds. previous_shares: those of the previous
// placement, null for equal parts. In `before`, every GPU that holds something counts as usable.
// errors: InvalidArgument if shapes differ, Internal as GapsToBounds.
absl::StatusOr<PlanReport> MakePlanReport(const ShapeOptions& frame, const PlanProblem& problem,
                                          PlanAnswer answer, const RealMatrix* previous_shares);

// Null for equal parts.
const RealMatrix* SharesOf(const PlanReport& report);

// One line with a newline; every number is finite.
std::string PlanReportToJson(const PlanReport& report);
// Text in which no line is wider than the terminal.
std::string PlanReportToTable(const PlanReport& report, const Terminal& terminal);

}  // namespace eplb::cli
