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
  for (const Scenario& scenario : scenarios_) shares_.push_back(NormalisedLayers(scenario.load));
}

ScenarioLoads ScenarioLayers::Layer(int32_t layer) const {
  ScenarioLoads loads{.objective = objective_};
  for (size_t k = 0; k < shares_.size(); ++k) {
    const auto row = shares_[k].row(layer);
    if ((row == 0).all()) continue;
    loads.tokens.emplace_back(row.begin(), row.end());
    loads.weights.push_back(scenarios_[k].weight);
  }
  return loads;
}

}  // namespace eplb
