// Solves layers with policy `balanced`, effort thorough, for tests that compare with other solvers.
// stdin: [{"load": [tokens of each expert], "slots": S, "gpus": G}, ..]; stdout, for each:
// {"found": largest GPU load, "bound": proved lower bound, "duplicates": n}.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "placement/evaluate.h"
#include "placement/policies/balanced_policy.h"
#include "placement/search/bound.h"
#include "placement/search/domain_bound.h"

#include <nlohmann/json.hpp>

namespace eplb {
namespace {

absl::StatusOr<nlohmann::json> Solve(const nlohmann::json& layer) {
  const std::vector<int64_t> cells = layer.at("load");
  const auto experts = static_cast<int32_t>(cells.size());
  EPLB_ASSIGN_OR_RETURN(const Load load,
                        Load::FromCounts(Eigen::Map<const LoadMatrix>(cells.data(), 1, experts)));
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make({.num_layers = 1,
                                                                 .num_experts = experts,
                                                                 .num_slots = layer.at("slots"),
                                                                 .num_gpus = layer.at("gpus")}));
  const auto policy = MakeBalancedPolicy({.effort = Effort::kThorough});
  EPLB_ASSIGN_OR_RETURN(const Placement placement,
                        policy->Solve({.load = load, .topology = topology}));
  EPLB_ASSIGN_OR_RETURN(const Evaluation evaluation, Evaluate(load, placement));
  EPLB_ASSIGN_OR_RETURN(const std::vector<double> bounds, LowerBounds(load, topology));
  Domain domain;
  domain.load.assign(cells.begin(), cells.end());
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    domain.slots.push_back(topology.SlotsOf(GpuId{gpu}));
  }
  domain.speed.assign(domain.slots.size(), 1.0);
  return nlohmann::json{{"found", evaluation.max_gpu_load[0]},
                        {"bound", std::max(bounds[0], DomainBound(domain))},
                        {"duplicates", CountDuplicates(placement)}};
}

int Main() {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  const nlohmann::json layers = nlohmann::json::parse(text, nullptr, false);
  nlohmann::json answers = nlohmann::json::array();
  for (const nlohmann::json& layer : layers) {
    absl::StatusOr<nlohmann::json> answer = Solve(layer);
    if (!answer.ok()) {
      std::cerr << answer.status() << "\n";
      return 1;
    }
    answers.push_back(*std::move(answer));
  }
  std::cout << answers << "\n";
  return 0;
}

}  // namespace
}  // namespace eplb

int main() {
  try {
    return eplb::Main();
  } catch (const std::exception& malformed) {  // thrown by the JSON library
    std::fprintf(stderr, "%s\n", malformed.what());
    return 1;
  }
}
