// `eplbctl plan`: computes a placement offline from a load file.
#ifndef EPLB_CLIENT_CLI_PLAN_H_
#define EPLB_CLIENT_CLI_PLAN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/flags.h"
#include "client/cli/shape_options.h"
#include "client/cli/terminal.h"
#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"
#include "placement/search/node_affinity.h"
#include "placement/topology.h"

namespace eplb::cli {

// From what a plan is asked for to a placement and, where tokens are split, its shares.

// Views; all of one shape.
struct PlanProblem {
  const Load& load;
  const Topology& topology;
  const GpuSpeeds& speeds;
  const Placement* previous = nullptr;  // null: none
  SplitMode split = SplitMode::kEqual;  // of the job that is planned for
  std::span<const Load> windows = {};   // of the load, oldest first, each as one batch
};

struct PlanAnswer {
  Placement placement;
  std::optional<RealMatrix> shares;  // [L, S]; none: equal parts
};

// Asks the policy. Slots of `balanced` are aligned to a previous placement, and with
// --max-moves-per-gpu a layer that would need more transfers into a GPU is `incremental`'s instead.
// `optimal_split`: `balanced` without a past gives way to the exactly even placement (PlaceEvenly)
// where that applies, also on some GPUs only and where duplicates are allowed; else, so for GPUs of
// different speeds, the policy's placement gets the best shares. With a problem that is split by
// batch the policy aims at exact splits of the windows, and its placement gets the best shares for
// the load. errors: the policy's.
absl::StatusOr<PlanAnswer> SolvePlan(const ShapeOptions& frame, bool optimal_split,
                                     const PlanProblem& problem);

// A plan with its figures, as values and as text.

// Score on the later windows of a trace, of a placement that was planned on the earlier ones.
struct LaterWindows {
  Evaluation evaluation;
  int64_t planned_windows = 0;
  int64_t scored_windows = 0;
  std::string text;  // ScoredOnText
};

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
  // Split by batch: of EvaluateBatches over the windows, as `after` and `before`. None: not asked
  // for.
  std::optional<Evaluation> batches_after;
  std::optional<Evaluation> batches_before;
  std::optional<LaterWindows> later;  // none: the load is one window, so that all figures are on it
  double solve_seconds = 0;
};

// Everything but `later` and solve_seconds. previous_shares: of the previous placement, null for
// equal parts. `before` is of GPUs that can all be used where they hold something. errors:
// InvalidArgument when shapes differ, Internal as GapsToBounds.
absl::StatusOr<PlanReport> MakePlanReport(const ShapeOptions& frame, const PlanProblem& problem,
                                          PlanAnswer answer, const RealMatrix* previous_shares);

// Null for equal parts.
const RealMatrix* SharesOf(const PlanReport& report);

// One line with a newline; every number is finite.
std::string PlanReportToJson(const PlanReport& report);
// For people; no line is wider than the terminal.
std::string PlanReportToTable(const PlanReport& report, const Terminal& terminal);

struct PlanOptions {
  std::string load;
  LoadReading reading;
  ShapeOptions frame;
  SpeedOptions speeds;
  std::optional<int32_t> slots;      // exactly one of the two
  std::optional<int32_t> redundant;  // slots = experts + redundant
  std::string split = "equal";       // equal, optimal, batch
  std::string previous;              // path, may be empty
  std::string window = "sum";
  std::string out;  // path, may be empty
  Format format = Format::kTable;
};

// Reads the files, solves, writes --out, and only then gives the text for stdout. Exit 2 for bad
// flags, files and shapes; 1 when --out cannot be written.
Output RunPlan(const PlanOptions& options, const Terminal& terminal);

void AddPlan(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_PLAN_H_
