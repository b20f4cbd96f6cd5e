#include "placement/scenarios.h"

#include <string>
#include <utility>

#include "base/errors.h"

namespace eplb {
namespace {

// A sum below this leaves too few digits of its parts.
constexpr double kLeastTokens = 1e-290;

}  // namespace

absl::Status CheckLayerSums(const Load& load) {
  const RealMatrix tokens = load.ToDouble();
  for (Eigen::Index layer = 0; layer < tokens.rows(); ++layer) {
    const double most = tokens.row(layer).maxCoeff();
    if (most > 0 && most < kLeastTokens) {
      return InvalidInput("layer ", layer, " has less than 1e-290 tokens");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckScenarios(std::span<const Scenario> scenarios) {
  if (scenarios.empty() || scenarios.size() > kMaxScenarios) {
    return InvalidInput(scenarios.size(), " scenarios, expected 1..", kMaxScenarios);
  }
  const Load& first = scenarios.front().load;
  for (size_t k = 0; k < scenarios.size(); ++k) {
    const auto& [load, weight, name] = scenarios[k];
    if (load.num_layers() != first.num_layers() || load.num_experts() != first.num_experts()) {
      return InvalidInput("scenario ", k, " has ", load.num_layers(), " layers of ",
                          load.num_experts(), " experts, scenario 0 has ", first.num_layers(),
                          " of ", first.num_experts());
    }
    if (!(weight >= 1 / kMaxScenarioWeight && weight <= kMaxScenarioWeight)) {
      return InvalidInput("scenario ", k, " has the weight ", weight, ", expected 1e-9..1e9");
    }
    if (!load.has_tokens()) return InvalidInput("scenario ", k, " has no tokens");
    const absl::Status sums = CheckLayerSums(load);
    if (!sums.ok()) return InvalidInput("scenario ", k, " ", std::string(sums.message()));
  }
  return absl::OkStatus();
}

Load MeanOfScenarios(std::span<const Scenario> scenarios) {
  const Load& first = scenarios.front().load;
  RealMatrix mean = RealMatrix::Zero(first.num_layers(), first.num_experts());
  Eigen::ArrayXd weights = Eigen::ArrayXd::Zero(mean.rows());
  for (const auto& [load, weight, name] : scenarios) {
    const RealMatrix shares = NormalisedLayers(load);
    for (Eigen::Index layer = 0; layer < shares.rows(); ++layer) {
      if ((shares.row(layer) == 0).all()) continue;
      mean.row(layer) += shares.row(layer) * weight;
      weights[layer] += weight;
    }
  }
  for (Eigen::Index layer = 0; layer < mean.rows(); ++layer) {
    if (weights[layer] > 0) mean.row(layer) /= weights[layer];
  }
  return *Load::FromEstimates(std::move(mean));
}

}  // namespace eplb
