#include "placement/policies/balanced_policy.h"

#include <cmath>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "placement/policies/deepseek_policy.h"
#include "placement/search/layer_solver.h"
#include "placement/search/node_affinity.h"
#include "placement/search/scenario_loads.h"
#include "placement/search/scenario_solver.h"

namespace eplb {
namespace {

std::span<const int32_t> Row(const IndexMatrix& matrix, Eigen::Index row) {
  return {matrix.data() + row * matrix.cols(), static_cast<size_t>(matrix.cols())};
}

// Returns the reference's answer under the same hierarchy; nullopt if it refuses the shape or load.
std::optional<IndexMatrix> DeepseekSlots(const PolicyInput& input, const GpuSpeeds& speeds,
                                         Hierarchy hierarchy) {
  if (!speeds.all_equal()) return std::nullopt;
  const absl::StatusOr<FloatMatrix> weight = input.load.ToFloat();
  if (!weight.ok()) return std::nullopt;
  const bool flat = hierarchy == Hierarchy::kNone;
  absl::StatusOr<DeepseekMaps> maps =
      RebalanceExperts(*weight,
                       {.num_slots = input.topology.num_slots(),
                        .num_groups = flat ? 1 : input.topology.num_groups(),
                        .num_nodes = flat ? 1 : input.topology.num_nodes(),
                        .num_gpus = input.topology.num_gpus()},
                       TieBreak::kStable);
  if (!maps.ok()) return std::nullopt;
  return std::move(maps->physical_to_logical);
}

// Scales a layer by a power of two until its sum is between 0.5 and 1. That changes no bit of any
// quotient of loads, and whatever the load's unit was, no GPU load overflows and float32 can tell
// them apart.
void Normalise(std::span<double> load) {
  int exponent = 0;
  std::frexp(std::accumulate(load.begin(), load.end(), 0.0), &exponent);
  for (double& tokens : load) tokens = std::ldexp(tokens, -exponent);
}

// Solvers of layers, one after the other.
class LayerSolvers {
 public:
  LayerSolvers(const PolicyInput& input, const GpuSpeeds& speeds, const LayerSolverOptions& options)
      : solver_(input.topology, speeds, options), scenarios_(input) {
    // With duplicates allowed, the answer without them is a candidate, because the larger space is
    // harder to search.
    if (options.allow_duplicates) {
      LayerSolverOptions narrower = options;
      narrower.allow_duplicates = false;
      without_duplicates_.emplace(input.topology, speeds, narrower);
    }
    if (input.scenarios.size() > 1) for_scenarios_.emplace(input.topology, speeds, options);
  }

  void Solve(int32_t layer, std::span<const double> load,
             std::vector<std::span<const int32_t>>& candidates, std::span<int32_t> slots) {
    const ScenarioLoads scenarios = scenarios_.Layer(layer);
    if (scenarios.size() > 1) {
      for_scenarios_->Solve(scenarios, candidates, slots);
      return;
    }
    std::vector<int32_t> narrower_slots(slots.size());
    if (without_duplicates_.has_value()) {
      without_duplicates_->Solve(load, candidates, narrower_slots);
      candidates.emplace_back(narrower_slots);
    }
    solver_.Solve(load, candidates, slots);
  }

 private:
  LayerSolver solver_;
  std::optional<LayerSolver> without_duplicates_;
  std::optional<ScenarioSolver> for_scenarios_;
  ScenarioLayers scenarios_;
};

class BalancedPolicy final : public Policy {
 public:
  explicit BalancedPolicy(const PolicyOptions& options) : options_(options) {}

  std::string_view name() const override { return "balanced"; }

  absl::StatusOr<Placement> Solve(const PolicyInput& input) const override {
    const Topology& topology = input.topology;
    EPLB_RETURN_IF_ERROR(CheckLoadFits(input.load, topology));
    EPLB_RETURN_IF_ERROR(CheckScenariosFit(input));
    const GpuSpeeds speeds =
        input.speeds == nullptr ? GpuSpeeds::Equal(topology.num_gpus()) : *input.speeds;
    const LayerSolverOptions options = {
        .hierarchy = options_.hierarchy.value_or(DefaultHierarchy(topology)),
        .effort = options_.effort,
        .allow_duplicates = options_.allow_duplicates,
        .abandoned = input.abandoned};
    EPLB_RETURN_IF_ERROR(LayerSolver::Check(topology, speeds, options));
    const std::optional<IndexMatrix> deepseek = DeepseekSlots(input, speeds, options.hierarchy);
    RealMatrix load = input.load.ToDouble();
    LayerSolvers solvers(input, speeds, options);
    IndexMatrix slots(topology.num_layers(), topology.num_slots());
    std::vector<std::span<const int32_t>> candidates;
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      EPLB_RETURN_IF_ERROR(CheckWanted(input));
      candidates.clear();
      if (input.previous != nullptr && input.previous->topology() == topology) {
        candidates.push_back(Row(input.previous->physical_to_logical_map(), layer));
      }
      if (deepseek.has_value()) candidates.push_back(Row(*deepseek, layer));
      const std::span<double> cells(&load(layer, 0), static_cast<size_t>(load.cols()));
      Normalise(cells);
      solvers.Solve(layer, cells, candidates,
                    {&slots(layer, 0), static_cast<size_t>(slots.cols())});
    }
    EPLB_RETURN_IF_ERROR(CheckWanted(input));
    EPLB_ASSIGN_OR_RETURN(const Placement placement, Placement::FromSlots(topology, slots));
    return WithPrimariesOnAffineNode(placement, options.hierarchy);
  }

 private:
  PolicyOptions options_;
};

}  // namespace

std::unique_ptr<Policy> MakeBalancedPolicy(const PolicyOptions& options) {
  return std::make_unique<BalancedPolicy>(options);
}

}  // namespace eplb
