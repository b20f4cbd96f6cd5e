#include "placement/search/scenario_evaluation.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "placement/figure_mean.h"
#include "placement/split/batch_split.h"

namespace eplb {
namespace {

// Figures of one layer, one a scenario with load there, as the objective takes them together.
class LayerObjective {
 public:
  explicit LayerObjective(ScenarioObjective objective) : objective_(objective) {}

  // ratio: largest GPU load / (tokens / sum of speeds).
  void Add(double ratio, double weight) {
    sum_ += weight * ratio;
    weights_ += weight;
    worst_ = std::max(worst_, ratio);
  }
  std::optional<double> Figure() const {
    if (weights_ <= 0) return std::nullopt;
    return objective_ == ScenarioObjective::kWorst ? worst_ : sum_ / weights_;
  }

 private:
  ScenarioObjective objective_;
  double sum_ = 0;
  double weights_ = 0;
  double worst_ = 0;
};

std::optional<double> LeastOfMixtures(std::span<const Evaluation> scenarios) {
  FigureMean mean;
  for (size_t layer = 0; layer < scenarios.front().balancedness.size(); ++layer) {
    const auto in_layer = [layer](const Evaluation& one) { return one.balancedness[layer]; };
    mean.Add(in_layer(*std::ranges::min_element(scenarios, LessBalanced, in_layer)));
  }
  return mean.Value();
}

double TotalSpeed(const GpuSpeeds* speeds, const Topology& topology) {
  return speeds == nullptr ? topology.num_gpus() : speeds->total();
}

}  // namespace

absl::StatusOr<ScenarioEvaluation> EvaluateScenarios(std::span<const Scenario> scenarios,
                                                     ScenarioObjective objective,
                                                     const Placement& placement, SplitMode split,
                                                     const GpuSpeeds* speeds) {
  EPLB_RETURN_IF_ERROR(CheckScenarios(scenarios));
  ScenarioEvaluation evaluation;
  const double total_speed = TotalSpeed(speeds, placement.topology());
  std::vector<LayerObjective> figures(static_cast<size_t>(placement.topology().num_layers()),
                                      LayerObjective(objective));
  for (const auto& [load, weight, name] : scenarios) {
    EPLB_ASSIGN_OR_RETURN(Evaluation one, EvaluateSplit(load, placement, split, speeds));
    const RealMatrix tokens = load.ToDouble();
    for (size_t layer = 0; layer < figures.size(); ++layer) {
      const double sum = tokens.row(static_cast<Eigen::Index>(layer)).sum();
      // Rounding can put the ratio a last bit below 1.
      if (sum > 0) {
        figures[layer].Add(std::max(1.0, one.max_gpu_load[layer] / (sum / total_speed)), weight);
      }
    }
    evaluation.scenarios.push_back(std::move(one));
  }
  FigureMean mean;
  for (const LayerObjective& figure : figures) {
    evaluation.objective.push_back(figure.Figure());
    mean.Add(evaluation.objective.back());
  }
  evaluation.mean_objective = mean.Value();
  evaluation.mixtures_at_least = LeastOfMixtures(evaluation.scenarios);
  return evaluation;
}

absl::StatusOr<std::vector<double>> ScenarioBounds(std::span<const Scenario> scenarios,
                                                   ScenarioObjective objective,
                                                   const Topology& topology,
                                                   const BoundOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckScenarios(scenarios));
  const double total_speed = TotalSpeed(options.speeds, topology);
  std::vector<LayerObjective> figures(static_cast<size_t>(topology.num_layers()),
                                      LayerObjective(objective));
  for (const auto& [load, weight, name] : scenarios) {
    EPLB_ASSIGN_OR_RETURN(const std::vector<double> bounds, LowerBounds(load, topology, options));
    const RealMatrix tokens = load.ToDouble();
    for (size_t layer = 0; layer < bounds.size(); ++layer) {
      const double sum = tokens.row(static_cast<Eigen::Index>(layer)).sum();
      if (sum > 0) figures[layer].Add(bounds[layer] * total_speed / sum, weight);
    }
  }
  // Each layer of the mean has a sum of 1.
  EPLB_ASSIGN_OR_RETURN(std::vector<double> bounds,
                        LowerBounds(MeanOfScenarios(scenarios), topology, options));
  for (size_t layer = 0; layer < bounds.size(); ++layer) {
    bounds[layer] = std::max(bounds[layer] * total_speed, figures[layer].Figure().value_or(0));
  }
  return bounds;
}

}  // namespace eplb
