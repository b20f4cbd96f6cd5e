// Figures of a plan for several loads: under each of them, and of the objective over all.
// threads: safe, no state.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/plan_loads.h"
#include "client/cli/shape_options.h"
#include "placement/evaluate.h"
#include "placement/placement.h"
#include "placement/scenario_medoids.h"
#include "placement/scenarios.h"
#include "placement/search/bound.h"
#include "placement/search/scenario_evaluation.h"

namespace eplb::cli {

struct ScenarioFigures {
  std::vector<std::string> names;  // [K]
  std::vector<double> weights;     // [K]
  ScenarioObjective objective = ScenarioObjective::kMean;
  std::optional<ScenarioChoice> choice;  // if the loads are windows of a trace
  ScenarioEvaluation before;
  ScenarioEvaluation after;
  std::vector<BoundGaps> gaps;  // [K], largest GPU loads above the bounds of that load alone
  BoundGaps gap;                // objective above its bound
};

// A placement with the GPUs that it was made for.
struct EvaluatedPlacement {
  const Placement& placement;
  const GpuSpeeds& speeds;
};

// errors: as EvaluateScenarios, ScenarioBounds and GapsToBounds.
absl::StatusOr<ScenarioFigures> MakeScenarioFigures(const PlannedLoads& loads, SplitMode split,
                                                    const EvaluatedPlacement& before,
                                                    const EvaluatedPlacement& after,
                                                    const BoundOptions& bound);

// "mean" or "worst".
const char* ObjectiveName(ScenarioObjective objective);

// `"scenarios":[..],"objective":{..}`: members of a JSON object.
std::string ScenariosToJson(const ScenarioFigures& figures);

}  // namespace eplb::cli
