// A plan: computed, and with its figures as values, as JSON and as text.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/plan_loads.h"
#include "client/cli/plan_survival.h"
#include "client/cli/shape_options.h"
#include "client/cli/terminal.h"
#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"
#include "placement/scenario_medoids.h"
#include "placement/scenarios.h"
#include "placement/search/node_affinity.h"
#include "placement/search/scenario_evaluation.h"
#include "placement/topology.h"

namespace eplb::cli {

// A plan to be computed. Views; all of one shape.
struct PlanProblem {
  const PlannedLoads& loads;
  const Topology& topology;
  const GpuSpeeds& speeds;
  const Placement* previous = nullptr;           // may be null
  SplitMode split = SplitMode::kEqual;           // split of the planned job
  std::optional<SurvivalOptions> survival = {};  // only for equal shares
  std::span<const int32_t> lost_gpus = {};       // GPUs whose loss is repaired; unusable in speeds
};

struct PlanAnswer {
  Placement placement;
  std::optional<RealMatrix> shares;                // [L, S]; absent: equal parts
  std::optional<Placement> without_survival = {};  // the answer without the demand to survive
};

// The GPUs that a placement loses, and what it takes to repair that. A GPU that held nothing is
// only among them if the problem names it.
struct Loss {
  std::vector<int32_t> gpus;
  std::vector<std::vector<int32_t>> lost;  // [L], experts without a live replica
  int64_t slots_to_fill = 0;               // slots of the other GPUs that get another expert
};

// after: the placement after the loss. REQUIRES: the problem has a previous placement.
Loss LossOf(const PlanProblem& problem, const Placement& after);
// Members of a JSON object.
std::string LossToJson(const Loss& loss);
std::string LossText(const Loss& loss, const Terminal& terminal);

// Asks the policy. Slots of `balanced` are aligned to a previous placement. With
// --max-moves-per-gpu, `incremental` replaces each layer that would need more transfers into a GPU.
// `optimal_split`: `balanced` without a previous placement is replaced by the exactly even
// placement (PlaceEvenly) where that applies, also on some GPUs only and if duplicates are allowed.
// Otherwise, for example for GPUs of different speeds, the policy's placement gets the best shares.
// For a problem that is split by batch the policy aims at exact splits of the windows, and its
// placement gets the best shares for the load. errors: the policy's.
absl::StatusOr<PlanAnswer> SolvePlan(const ShapeOptions& frame, bool optimal_split,
                                     const PlanProblem& problem);

// The score on the later windows of a trace of a placement that was planned on the earlier ones.
struct LaterWindows {
  Evaluation evaluation;
  int64_t planned_windows = 0;
  int64_t scored_windows = 0;
  std::string text;  // ScoredOnText
};

// Figures of a plan for several loads: under each of them, and of the objective over all.
struct ScenarioFigures {
  std::vector<std::string> names;  // [K]
  std::vector<double> weights;     // [K]
  ScenarioObjective objective = ScenarioObjective::kMean;
  std::optional<ScenarioChoice> choice;  // if the loads are windows of a trace
  ScenarioEvaluation after;
  ScenarioEvaluation before;
  std::vector<BoundGaps> gaps;  // [K], above the bounds of placements for that load alone
  BoundGaps gap;                // the objective above its bound
};

// "mean" or "worst".
const char* ObjectiveName(ScenarioObjective objective);

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
  std::optional<SurvivalFigures> survival;  // absent unless the plan must survive a loss
  std::optional<Loss> loss;                 // absent unless the previous placement loses GPUs
  std::optional<LaterWindows> later;  // absent if the load is one window, and for several files
  std::optional<ScenarioFigures>
      scenarios;  // absent for one load; `after` and so on: of their mean
  double solve_seconds = 0;
};

// Fills in everything but `later` and solve_seconds. previous_shares: those of the previous
// placement, null for equal parts. In `before`, every GPU that holds something counts as usable.
// errors: InvalidArgument if shapes differ, Internal as GapsToBounds.
absl::StatusOr<PlanReport> MakePlanReport(const ShapeOptions& frame, const PlanProblem& problem,
                                          PlanAnswer answer, const RealMatrix* previous_shares);

// Speeds of the GPUs that hold something in `before`. A GPU that is unusable now may have served
// then at an unknown speed, which counts as 1.
absl::StatusOr<GpuSpeeds> SpeedsBefore(const GpuSpeeds& speeds, const Placement& before);

// The shortest JSON number that reads back as the same double; null without a value.
std::string Number(double value);
std::string Number(const std::optional<double>& figure);

// Null for equal parts.
const RealMatrix* SharesOf(const PlanReport& report);

// One line with a newline; every number is finite.
std::string PlanReportToJson(const PlanReport& report);
// Text in which no line is wider than the terminal.
std::string PlanReportToTable(const PlanReport& report, const Terminal& terminal);

}  // namespace eplb::cli
