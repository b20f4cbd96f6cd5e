#include "placement/search/scenario_loads.h"

#include <numeric>
#include <utility>

namespace eplb {
namespace {

double SumOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

std::vector<double> ScenarioLoads::Mean() const {
  std::vector<double> mean(tokens.front().size());
  const double all = SumOf(weights);
  for (size_t k = 0; k < tokens.size(); ++k) {
    const double scale = weights[k] / all / SumOf(tokens[k]);
    for (size_t expert = 0; expert < mean.size(); ++expert) {
      mean[expert] += tokens[k][expert] * scale;
    }
  }
  return mean;
}

ScenarioLayers::ScenarioLayers(const PolicyInput& input)
    : scenarios_(input.scenarios), objective_(input.objective) {
  for (const Scenario& scenario : scenarios_) tokens_.push_back(scenario.load.ToDouble());
}

ScenarioLoads ScenarioLayers::Layer(int32_t layer) const {
  ScenarioLoads loads{.objective = objective_};
  for (size_t k = 0; k < tokens_.size(); ++k) {
    std::vector<double> row(tokens_[k].row(layer).begin(), tokens_[k].row(layer).end());
    const double sum = SumOf(row);
    if (sum <= 0) continue;
    for (double& tokens : row) tokens /= sum;
    loads.tokens.push_back(std::move(row));
    loads.weights.push_back(scenarios_[k].weight);
  }
  return loads;
}

}  // namespace eplb
