// The loads of one layer in each scenario.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/load.h"
#include "placement/policy.h"
#include "placement/scenarios.h"

namespace eplb {

struct ScenarioLoads {
  std::vector<std::vector<double>> tokens;  // [K][n] of experts, each with a sum above 0
  std::vector<double> weights;              // [K], > 0
  ScenarioObjective objective = ScenarioObjective::kMean;

  size_t size() const { return tokens.size(); }
  // The mean by weight of the loads, each scaled to a sum of 1. [n]
  std::vector<double> Mean() const;
};

// Layers of a policy's scenarios. Threads: immutable.
class ScenarioLayers {
 public:
  // REQUIRES: `input.scenarios` outlive this.
  explicit ScenarioLayers(const PolicyInput& input);

  // The scenarios that have tokens in a layer, each with a sum of 1.
  ScenarioLoads Layer(int32_t layer) const;

 private:
  std::span<const Scenario> scenarios_;
  ScenarioObjective objective_;
  std::vector<RealMatrix> shares_;  // [K], each [L, E]
};

}  // namespace eplb
