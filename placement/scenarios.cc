#include "placement/scenarios.h"

#include <utility>

#include "base/errors.h"

namespace eplb {
namespace {

bool HasTokens(const Load& load) { return (load.ToDouble() > 0).any(); }

}  // namespace

absl::Status CheckScenarios(std::span<const Scenario> scenarios) {
  if (scenarios.empty() || scenarios.size() > kMaxScenarios) {
    return InvalidInput(scenarios.size(), " scenarios, expected 1..", kMaxScenarios);
  }
  const Load& first = scenarios.front().load;
  for (size_t k = 0; k < scenarios.size(); ++k) {
    const auto& [load, weight] = scenarios[k];
    if (load.num_layers() != first.num_layers() || load.num_experts() != first.num_experts()) {
      return InvalidInput("scenario ", k, " has ", load.num_layers(), " layers of ",
                          load.num_experts(), " experts, scenario 0 has ", first.num_layers(),
                          " of ", first.num_experts());
    }
    if (!(weight >= 1 / kMaxScenarioWeight && weight <= kMaxScenarioWeight)) {
      return InvalidInput("scenario ", k, " has the weight ", weight, ", expected 1e-9..1e9");
    }
    if (!HasTokens(load)) return InvalidInput("scenario ", k, " has no tokens");
  }
  return absl::OkStatus();
}

Load MeanOfScenarios(std::span<const Scenario> scenarios) {
  const Load& first = scenarios.front().load;
  RealMatrix mean = RealMatrix::Zero(first.num_layers(), first.num_experts());
  Eigen::ArrayXd weights = Eigen::ArrayXd::Zero(mean.rows());
  for (const auto& [load, weight] : scenarios) {
    const RealMatrix tokens = load.ToDouble();
    for (Eigen::Index layer = 0; layer < tokens.rows(); ++layer) {
      const double sum = tokens.row(layer).sum();
      if (sum <= 0) continue;
      mean.row(layer) += tokens.row(layer) / sum * weight;
      weights[layer] += weight;
    }
  }
  for (Eigen::Index layer = 0; layer < mean.rows(); ++layer) {
    if (weights[layer] > 0) mean.row(layer) /= weights[layer];
  }
  return *Load::FromEstimates(std::move(mean));
}

}  // namespace eplb
