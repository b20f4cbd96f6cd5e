// Placements for tests, given slot by slot or drawn from a seed; the same on every machine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

// One layer with these experts by slot, GPU by GPU.
inline Placement OneLayerPlacement(int32_t num_experts, int32_t num_gpus,
                                   const std::vector<int32_t>& physical_to_logical) {
  const Topology topology =
      *Topology::Make({.num_layers = 1,
                       .num_experts = num_experts,
                       .num_slots = static_cast<int32_t>(physical_to_logical.size()),
                       .num_gpus = num_gpus});
  return *Placement::FromSlots(
      topology, Eigen::Map<const IndexMatrix>(physical_to_logical.data(), 1, topology.num_slots()));
}

using Random = std::mt19937_64;

// first..last, both possible. The standard's distributions differ between libraries; this does not.
template <class Generator>
int32_t Pick(Generator& random, int32_t first, int32_t last) {
  return first + static_cast<int32_t>(random() % static_cast<uint64_t>(last - first + 1));
}

// About normal, the same on every machine.
inline double Normal(Random& random) {
  double sum = 0;
  for (int i = 0; i < 12; ++i) sum += Pick(random, 0, 1'000'000) / 1e6;
  return sum - 6;
}

// Up to 3 layers, 12 experts, 6 GPUs, 3 nodes and 24 slots; also GPUs with unequal slot counts.
inline Topology RandomTopology(Random& random) {
  TopologyOptions options;
  options.num_layers = Pick(random, 1, 3);
  options.num_experts = Pick(random, 1, 12);
  options.num_nodes = Pick(random, 1, 3);
  options.num_gpus = options.num_nodes * Pick(random, 1, 2);
  const int32_t least = std::max(options.num_experts, options.num_gpus);
  options.num_slots = Pick(random, least, 2 * least);
  return *Topology::Make(options);
}

// Every expert somewhere, spare slots and replica ranks at random.
template <class Generator>
Placement RandomPlacement(Generator& random, const Topology& topology) {
  IndexMatrix slots(topology.num_layers(), topology.num_slots());
  IndexMatrix ranks(topology.num_layers(), topology.num_slots());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      const bool spare = slot >= topology.num_experts();
      slots(layer, slot) = spare ? Pick(random, 0, topology.num_experts() - 1) : slot;
      std::swap(slots(layer, slot), slots(layer, Pick(random, 0, slot)));
    }
    std::vector<int32_t> seen(static_cast<size_t>(topology.num_experts()));
    std::vector<int32_t> order(static_cast<size_t>(topology.num_slots()));
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int32_t>(i);
      std::swap(order[i], order[static_cast<size_t>(Pick(random, 0, static_cast<int32_t>(i)))]);
    }
    for (const int32_t slot : order) {
      ranks(layer, slot) = seen[static_cast<size_t>(slots(layer, slot))]++;
    }
  }
  return *Placement::FromSlotsAndRanks(topology, slots, ranks);
}

// `placement` with up to `num_swaps` pairs of slots of a layer exchanged, ranks included.
inline Placement SwapSlots(Random& random, const Placement& placement, int32_t num_swaps) {
  IndexMatrix slots = placement.physical_to_logical_map();
  IndexMatrix ranks = placement.replica_rank();
  const Topology& topology = placement.topology();
  for (int32_t i = 0; i < num_swaps; ++i) {
    const int32_t layer = Pick(random, 0, topology.num_layers() - 1);
    const int32_t a = Pick(random, 0, topology.num_slots() - 1);
    const int32_t b = Pick(random, 0, topology.num_slots() - 1);
    std::swap(slots(layer, a), slots(layer, b));
    std::swap(ranks(layer, a), ranks(layer, b));
  }
  return *Placement::FromSlotsAndRanks(topology, slots, ranks);
}

}  // namespace eplb
