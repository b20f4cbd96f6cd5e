// Placements for tests, given slot by slot or drawn from a seed; the same on every machine.
#ifndef EPLB_TESTS_PLACEMENT_RANDOM_PLACEMENT_H_
#define EPLB_TESTS_PLACEMENT_RANDOM_PLACEMENT_H_

#include <cstdint>
#include <random>
#include <vector>

#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb::testing {

// One layer with these experts by slot, GPU by GPU.
Placement OneLayerPlacement(int32_t num_experts, int32_t num_gpus,
                            const std::vector<int32_t>& physical_to_logical);

using Random = std::mt19937_64;

// first..last, both possible. The standard's distributions differ between libraries; this does not.
int32_t Pick(Random& random, int32_t first, int32_t last);

// Up to 3 layers, 12 experts, 6 GPUs, 3 nodes and 24 slots; also GPUs with unequal slot counts.
Topology RandomTopology(Random& random);

// Every expert somewhere, spare slots and replica ranks at random.
Placement RandomPlacement(Random& random, const Topology& topology);

// `placement` with up to `num_swaps` pairs of slots of a layer exchanged, ranks included.
Placement SwapSlots(Random& random, const Placement& placement, int32_t num_swaps);

}  // namespace eplb::testing

#endif  // EPLB_TESTS_PLACEMENT_RANDOM_PLACEMENT_H_
