#include "client/cli/plan_report.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "placement/search/bound.h"
#include "placement/split/batch_split.h"
#include "proto/wire/placement_json.h"

namespace eplb::cli {

std::string Number(double value) {
  char digits[32];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
  return {digits, end};
}

std::string Number(const std::optional<double>& figure) {
  return figure ? Number(*figure) : "null";
}

namespace {

template <class Value>
std::string Array(const std::vector<Value>& values) {
  std::string text = "[";
  for (const Value& value : values) {
    if (text.size() > 1) text += ',';
    text += Number(value);
  }
  return text + "]";
}

std::string LaterToJson(const std::optional<LaterWindows>& later) {
  if (!later) return "null";
  return absl::StrCat("{\"planned_windows\":", later->planned_windows,
                      ",\"scored_windows\":", later->scored_windows,
                      ",\"balancedness_mean\":", Number(later->evaluation.mean_balancedness),
                      ",\"balancedness_min\":", Number(later->evaluation.min_balancedness), "}");
}

std::string BalancednessToJson(const Evaluation& evaluation) {
  return absl::StrCat("\"mean\":", Number(evaluation.mean_balancedness),
                      ",\"min\":", Number(evaluation.min_balancedness),
                      ",\"per_layer\":", Array(evaluation.balancedness));
}

std::string BoundToJson(const char* key, const BoundGaps& bound) {
  return absl::StrCat("\"", key, "\":", Array(bound.bounds),
                      ",\"gap_per_layer\":", Array(bound.gaps),
                      ",\"gap_mean\":", Number(bound.mean), ",\"gap_max\":", Number(bound.max));
}

// Members of a JSON object, the first after a comma.
std::string ScenariosToJson(const ScenarioFigures& figures) {
  std::string text = ",\"scenarios\":[";
  for (size_t k = 0; k < figures.names.size(); ++k) {
    const Evaluation& after = figures.after.scenarios[k];
    absl::StrAppend(&text, k > 0 ? "," : "", "{\"load\":", wire::JsonQuote(figures.names[k]),
                    ",\"weight\":", Number(figures.weights[k]), ",\"balancedness\":{",
                    BalancednessToJson(after),
                    "},\"max_gpu_load_per_layer\":", Array(after.max_gpu_load), ",\"bound\":{",
                    BoundToJson("max_gpu_load_per_layer", figures.gaps[k]), "}}");
  }
  absl::StrAppend(&text, "],\"objective\":{\"name\":\"", ObjectiveName(figures.objective),
                  "\",\"mean\":", Number(figures.after.mean_objective),
                  ",\"per_layer\":", Array(figures.after.objective), ",",
                  BoundToJson("bound_per_layer", figures.gap),
                  ",\"mixtures_at_least\":", Number(figures.after.mixtures_at_least), "}");
  if (!figures.choice.has_value()) return text;
  const ScenarioChoice& choice = *figures.choice;
  return absl::StrCat(text, ",\"scenario_choice\":{\"windows\":[",
                      absl::StrJoin(choice.windows, ","),
                      "],\"distance_mean\":", Number(choice.mean_distance),
                      ",\"distance_max\":", Number(choice.max_distance),
                      ",\"farthest_window\":", choice.farthest, "}");
}

// before, speeds: the placement before the plan, and its GPUs. bound: what the bounds hold for.
absl::StatusOr<ScenarioFigures> MakeScenarioFigures(const PlanProblem& problem,
                                                    const Placement& before,
                                                    const GpuSpeeds& speeds, const Placement& after,
                                                    const BoundOptions& bound) {
  const auto& [load, batches, scenarios, names, objective, choice] = problem.loads;
  ScenarioFigures figures{.names = names, .objective = objective, .choice = choice};
  EPLB_ASSIGN_OR_RETURN(figures.after, EvaluateScenarios(scenarios, objective, after, problem.split,
                                                         &problem.speeds));
  EPLB_ASSIGN_OR_RETURN(figures.before,
                        EvaluateScenarios(scenarios, objective, before, problem.split, &speeds));
  for (size_t k = 0; k < scenarios.size(); ++k) {
    EPLB_ASSIGN_OR_RETURN(const std::vector<double> bounds,
                          LowerBounds(scenarios[k].load, problem.topology, bound));
    EPLB_ASSIGN_OR_RETURN(BoundGaps gaps,
                          GapsToBounds(figures.after.scenarios[k].max_gpu_load, bounds));
    figures.weights.push_back(scenarios[k].weight);
    figures.gaps.push_back(std::move(gaps));
  }
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> bounds,
                        ScenarioBounds(scenarios, objective, problem.topology, bound));
  std::vector<double> found;
  for (const auto& layer : figures.after.objective) found.push_back(layer.value_or(0));
  EPLB_ASSIGN_OR_RETURN(figures.gap, GapsToBounds(found, bounds));
  return figures;
}

}  // namespace

const char* ObjectiveName(ScenarioObjective objective) {
  return objective == ScenarioObjective::kWorst ? "worst" : "mean";
}

absl::StatusOr<PlanReport> MakePlanReport(const ShapeOptions& frame, const PlanProblem& problem,
                                          PlanAnswer answer, const RealMatrix* previous_shares) {
  const Topology& topology = problem.topology;
  const bool has_previous = problem.previous != nullptr;
  PlanReport report{.policy = frame.policy.name,
                    .placement = std::move(answer.placement),
                    .shares = std::move(answer.shares),
                    .speeds = problem.speeds,
                    .hierarchy = HierarchyInForce(frame, topology),
                    .has_previous = has_previous};
  EPLB_ASSIGN_OR_RETURN(report.after,
                        Evaluate(problem.loads.load, report.placement,
                                 {.speeds = &report.speeds, .shares = SharesOf(report)}));
  for (size_t layer = 0; layer < report.after.max_gpu_load.size(); ++layer) {
    if (std::isfinite(report.after.max_gpu_load[layer])) continue;
    return InvalidInput("layer ", layer, ": tokens / speed of a GPU are above a double's range");
  }
  const Placement start = has_previous ? *problem.previous : Placement::Static(topology);
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds, SpeedsBefore(report.speeds, start));
  EPLB_ASSIGN_OR_RETURN(report.before, Evaluate(problem.loads.load, start,
                                                {.speeds = &speeds, .shares = previous_shares}));
  const BoundOptions bound{.speeds = &report.speeds,
                           .hierarchy = report.hierarchy,
                           .any_split = report.shares.has_value()};
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> bounds,
                        LowerBounds(problem.loads.load, topology, bound));
  EPLB_ASSIGN_OR_RETURN(report.bound, GapsToBounds(report.after.max_gpu_load, bounds));
  report.duplicates = CountDuplicates(report.placement);
  if (has_previous) {
    EPLB_ASSIGN_OR_RETURN(report.moves, SummariseMoves(*problem.previous, report.placement));
    Loss loss = LossOf(problem, report.placement);
    if (!loss.gpus.empty()) report.loss = std::move(loss);
  }
  if (problem.split == SplitMode::kBatch) {
    const std::vector<Load>& batches = problem.loads.batches;
    EPLB_ASSIGN_OR_RETURN(report.batches_after,
                          EvaluateBatches(batches, report.placement, &report.speeds));
    EPLB_ASSIGN_OR_RETURN(report.batches_before, EvaluateBatches(batches, start, &speeds));
  }
  if (!problem.loads.scenarios.empty()) {
    EPLB_ASSIGN_OR_RETURN(report.scenarios,
                          MakeScenarioFigures(problem, start, speeds, report.placement, bound));
  }
  if (problem.survival.has_value()) {
    EPLB_ASSIGN_OR_RETURN(report.survival,
                          MakeSurvivalFigures(problem.loads, problem.speeds, *problem.survival,
                                              *answer.without_survival, report.placement));
  }
  if (report.hierarchy == Hierarchy::kSoft) {
    EPLB_ASSIGN_OR_RETURN(
        report.crossing,
        ComputeCrossingShare(problem.loads.load, report.placement, SharesOf(report)));
  }
  return report;
}

absl::StatusOr<GpuSpeeds> SpeedsBefore(const GpuSpeeds& speeds, const Placement& before) {
  std::vector<double> numbers(speeds.speeds().begin(), speeds.speeds().end());
  std::vector<int32_t> unusable;
  for (int32_t gpu = 0; gpu < speeds.num_gpus(); ++gpu) {
    if (speeds.Usable(GpuId{gpu})) continue;
    numbers[static_cast<size_t>(gpu)] = 1;
    if (!before.Holds(GpuId{gpu})) unusable.push_back(gpu);
  }
  return GpuSpeeds::Make(speeds.num_gpus(), numbers, unusable);
}

const RealMatrix* SharesOf(const PlanReport& report) {
  return report.shares.has_value() ? &*report.shares : nullptr;
}

std::string PlanReportToJson(const PlanReport& report) {
  const Evaluation& after = report.after;
  std::string crossing;
  if (report.crossing.has_value()) {
    crossing = absl::StrCat(",\"crossing\":{\"share_mean\":", Number(report.crossing->mean),
                            ",\"share_max\":", Number(report.crossing->max), "}");
  }
  std::string batch;
  if (report.batches_after.has_value()) {
    batch =
        absl::StrCat(",\"batch_balancedness\":", Number(report.batches_after->mean_balancedness));
  }
  std::string losses;
  if (report.survival.has_value()) {
    losses = absl::StrCat(",\"survival\":", SurvivalToJson(*report.survival));
  }
  if (report.loss.has_value()) {
    absl::StrAppend(&losses, ",\"loss\":{", LossToJson(*report.loss), "}");
  }
  const std::string scenarios =
      report.scenarios.has_value() ? ScenariosToJson(*report.scenarios) : "";
  return absl::StrCat(
      "{\"policy\":", wire::JsonQuote(report.policy),
      ",\"placement\":", wire::PlacementToJson(report.placement, SharesOf(report)),
      ",\"balancedness\":{\"formula\":\"mean(gpu load)/max(gpu load)\",", BalancednessToJson(after),
      "},\"scored_on\":\"planned_load\",\"later_windows\":", LaterToJson(report.later),
      ",\"max_gpu_load_per_layer\":", Array(after.max_gpu_load), ",\"bound\":{",
      BoundToJson("max_gpu_load_per_layer", report.bound), "},\"duplicates\":", report.duplicates,
      ",\"moves\":{\"transfers\":", report.moves.transfers,
      ",\"slots_changed\":", report.moves.slots_changed,
      ",\"max_per_gpu\":", report.moves.max_per_gpu, ",\"cross_node\":", report.moves.cross_node,
      "}", crossing, batch, losses, scenarios, ",\"solve_seconds\":", Number(report.solve_seconds),
      "}\n");
}

}  // namespace eplb::cli
