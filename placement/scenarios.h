// Several loads that one placement must serve: scenarios.
//
// GPU loads are linear in the load, and the largest of them is convex. So a layer is at least as
// balanced under any mixture of the scenarios as under the worst of them. A mixture is of loads
// that are scaled to the same number of tokens in the layer. That holds for equal shares and for
// exact splits.
// threads: safe, no state.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "absl/status/status.h"

#include "placement/load.h"

namespace eplb {

struct Scenario {
  Load load;              // [L, E]
  double weight = 1;      // 1/kMaxScenarioWeight .. kMaxScenarioWeight
  std::string name = {};  // for people; may be empty

  friend bool operator==(const Scenario&, const Scenario&) = default;
};

inline constexpr size_t kMaxScenarios = 64;
inline constexpr double kMaxScenarioWeight = 1e9;

// Figure of a layer over its scenarios: the mean, by weight, of largest / mean GPU load, or the
// largest of these. A scenario without load in a layer does not count there.
enum class ScenarioObjective { kMean, kWorst };

// errors: InvalidArgument, naming the first layer that has tokens, but less than 1e-290.
absl::Status CheckLayerSums(const Load& load);

// errors: InvalidArgument, naming the scenario by its index from 0: none or more than
// kMaxScenarios, a load of another shape than the first, a load without tokens, a weight out of
// range. Those of CheckLayerSums.
absl::Status CheckScenarios(std::span<const Scenario> scenarios);

// The mean of the scenarios by weight, each layer of a scenario scaled to a sum of 1: the load that
// stands for all where one is asked for. REQUIRES: CheckScenarios is ok.
Load MeanOfScenarios(std::span<const Scenario> scenarios);

}  // namespace eplb
