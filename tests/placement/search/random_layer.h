// Seeded random layers on whole topologies, and what makes the layout of one legal.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "placement/search/layer_solver.h"
#include "tests/placement/random_placement.h"

namespace eplb {

using Layer = std::vector<int32_t>;  // [S], the expert of each slot

// A random layer's shape with expert groups that fit the nodes, and GPUs that may differ.
struct World {
  Topology topology;
  GpuSpeeds speeds;
  std::vector<double> load;
};

World RandomWorld(Random& random, const LayerSolverOptions& options);

std::string Describe(const World& world);

// Returns the nodes with a replica of an expert.
std::set<int32_t> NodesOf(const World& world, const Layer& slots, int32_t expert);

// Expects that a layer obeys the options: hierarchy, duplicates, unusable GPUs.
void ExpectLegal(const World& world, const LayerSolverOptions& options, const Layer& slots);

}  // namespace eplb
