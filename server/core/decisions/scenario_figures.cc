#include "server/core/decisions/scenario_figures.h"

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/search/scenario_evaluation.h"

namespace eplb::core {
namespace {

// Every scenario has tokens, so every figure has a value.
void Show(const Evaluation& evaluation, v1::OverLayers* out) {
  out->set_mean(evaluation.mean_balancedness.value());
  out->set_min(evaluation.min_balancedness.value());
}

}  // namespace

absl::StatusOr<v1::Plan> ScenarioFiguresOf(std::span<const Scenario> scenarios,
                                           const Placement& incumbent, const Placement& proposed,
                                           SplitMode split, const GpuSpeeds* speeds) {
  constexpr ScenarioObjective kObjective = ScenarioObjective::kMean;
  EPLB_ASSIGN_OR_RETURN(const ScenarioEvaluation before,
                        EvaluateScenarios(scenarios, kObjective, incumbent, split, speeds));
  EPLB_ASSIGN_OR_RETURN(const ScenarioEvaluation after,
                        EvaluateScenarios(scenarios, kObjective, proposed, split, speeds));
  v1::Plan plan;
  for (size_t k = 0; k < scenarios.size(); ++k) {
    v1::ScenarioFigures& row = *plan.add_scenarios();
    const std::string& name = scenarios[k].name;
    row.set_load(name.empty() ? absl::StrCat("typical load ", k + 1) : name);
    row.set_weight(scenarios[k].weight);
    Show(after.scenarios[k], row.mutable_balancedness());
    Show(before.scenarios[k], row.mutable_balancedness_in_force());
  }
  v1::ObjectiveFigures& objective = *plan.mutable_objective();
  objective.set_name("mean");
  objective.set_mean(after.mean_objective.value());
  objective.set_mean_in_force(before.mean_objective.value());
  objective.set_mixtures_at_least(after.mixtures_at_least.value());
  objective.set_mixtures_at_least_in_force(before.mixtures_at_least.value());
  return plan;
}

}  // namespace eplb::core
