#include "client/cli/plan_scenarios.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "proto/wire/message_json.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

Json FigureJson(const std::optional<double>& figure) {
  return figure.has_value() ? Json(*figure) : Json();
}

Json FiguresJson(const std::vector<std::optional<double>>& figures) {
  Json json = Json::array();
  for (const std::optional<double>& figure : figures) json.push_back(FigureJson(figure));
  return json;
}

Json BoundJson(const char* bounds, const BoundGaps& gaps) {
  return {{bounds, gaps.bounds},
          {"gap_per_layer", FiguresJson(gaps.gaps)},
          {"gap_mean", FigureJson(gaps.mean)},
          {"gap_max", FigureJson(gaps.max)}};
}

}  // namespace

absl::StatusOr<ScenarioFigures> MakeScenarioFigures(const PlannedLoads& loads, SplitMode split,
                                                    const EvaluatedPlacement& before,
                                                    const EvaluatedPlacement& after,
                                                    const BoundOptions& bound) {
  const Topology& topology = after.placement.topology();
  ScenarioFigures figures{
      .names = loads.names, .objective = loads.objective, .choice = loads.choice};
  EPLB_ASSIGN_OR_RETURN(figures.before, EvaluateScenarios(loads.scenarios, loads.objective,
                                                          before.placement, split, &before.speeds));
  EPLB_ASSIGN_OR_RETURN(figures.after, EvaluateScenarios(loads.scenarios, loads.objective,
                                                         after.placement, split, &after.speeds));
  for (size_t k = 0; k < loads.scenarios.size(); ++k) {
    figures.weights.push_back(loads.scenarios[k].weight);
    EPLB_ASSIGN_OR_RETURN(const std::vector<double> bounds,
                          LowerBounds(loads.scenarios[k].load, topology, bound));
    EPLB_ASSIGN_OR_RETURN(BoundGaps gaps,
                          GapsToBounds(figures.after.scenarios[k].max_gpu_load, bounds));
    figures.gaps.push_back(std::move(gaps));
  }
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> bounds,
                        ScenarioBounds(loads.scenarios, loads.objective, topology, bound));
  std::vector<double> objective;
  for (const std::optional<double>& layer : figures.after.objective) {
    objective.push_back(layer.value_or(0));
  }
  EPLB_ASSIGN_OR_RETURN(figures.gap, GapsToBounds(objective, bounds));
  return figures;
}

const char* ObjectiveName(ScenarioObjective objective) {
  return objective == ScenarioObjective::kWorst ? "worst" : "mean";
}

std::string ScenariosToJson(const ScenarioFigures& figures) {
  Json scenarios = Json::array();
  for (size_t k = 0; k < figures.names.size(); ++k) {
    const Evaluation& after = figures.after.scenarios[k];
    scenarios.push_back({{"load", figures.names[k]},
                         {"weight", figures.weights[k]},
                         {"balancedness",
                          {{"mean", FigureJson(after.mean_balancedness)},
                           {"min", FigureJson(after.min_balancedness)},
                           {"per_layer", FiguresJson(after.balancedness)}}},
                         {"max_gpu_load_per_layer", after.max_gpu_load},
                         {"bound", BoundJson("max_gpu_load_per_layer", figures.gaps[k])}});
  }
  Json objective = {{"name", ObjectiveName(figures.objective)},
                    {"mean", FigureJson(figures.after.mean_objective)},
                    {"per_layer", FiguresJson(figures.after.objective)}};
  objective.update(BoundJson("bound_per_layer", figures.gap));
  std::string text = absl::StrCat("\"scenarios\":", wire::DumpJson(scenarios),
                                  ",\"objective\":", wire::DumpJson(objective));
  if (figures.choice.has_value()) {
    const Json choice = {{"windows", figures.choice->windows},
                         {"distance_mean", figures.choice->mean_distance},
                         {"distance_max", figures.choice->max_distance},
                         {"farthest_window", figures.choice->farthest}};
    absl::StrAppend(&text, ",\"scenario_choice\":", wire::DumpJson(choice));
  }
  return text;
}

}  // namespace eplb::cli
