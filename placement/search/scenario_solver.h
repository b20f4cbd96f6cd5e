// Solves a layer for several loads on a whole topology: hierarchy, unusable GPUs and candidates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "placement/gpu_speeds.h"
#include "placement/search/domain_in_layer.h"
#include "placement/search/layer_solver.h"
#include "placement/search/node_partition.h"
#include "placement/search/scenario_walk.h"
#include "placement/topology.h"

namespace eplb {

// Limits of the walk of a layer, in proposals; those of kThorough are shared by the layers of a
// load.
struct WalkLimits {
  int64_t descend = 0;
  int64_t anneal = 0;
};
WalkLimits WalkLimitsOf(Effort effort, int32_t num_slots, int32_t num_layers);

// Layers of one topology, one after the other. Starts from the answer of LayerSolver for the mean
// of the loads, or from its replicas packed anew by all loads, whichever is better, and walks on.
// The answer depends on the problem and the effort alone. Threads: one at a time.
class ScenarioSolver {
 public:
  // REQUIRES: LayerSolver::Check is ok; `topology` and `speeds` outlive this.
  ScenarioSolver(const Topology& topology, const GpuSpeeds& speeds,
                 const LayerSolverOptions& options);

  // Writes the expert of each slot [S]; slots of unusable GPUs hold -1. loads: at least one, each
  // [E] with tokens. candidates: layers [S] from elsewhere; one that obeys the same constraints is
  // taken if it is better.
  void Solve(const ScenarioLoads& loads, std::span<const std::span<const int32_t>> candidates,
             std::span<int32_t> slots);

 private:
  // Writes the layer of the mean load and sets the domain's affinities.
  void Begin(const ScenarioLoads& loads, std::span<int32_t> slots);
  // The nodes of expert groups with the least objective that the loads of nodes allow.
  NodePartition ChoosePartition(const ScenarioLoads& loads) const;
  // Returns the best layout that walks from a layer find within the limits.
  std::vector<int32_t> Improve(std::span<const int32_t> slots, ScenarioObjective objective,
                               ScenarioWalk& walk);

  const Topology& topology_;
  LayerSolverOptions options_;
  LayerSolver mean_solver_;
  DomainInLayer whole_;
  std::vector<Domain> node_domains_;  // [N], without loads
  WalkLimits limits_;
};

}  // namespace eplb
