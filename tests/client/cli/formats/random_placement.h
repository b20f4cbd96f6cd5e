// Placements to write and read back.
#pragma once

#include <algorithm>
#include <random>

#include "placement/placement.h"
#include "tests/placement/random_placement.h"

namespace eplb {

// 1..4 layers, up to 9 experts and 4 GPUs; replicas in random slots, and in random order when
// `random_ranks`. Each GPU holds as many slots when `equal_gpus`.
inline Placement RandomPlacement(std::mt19937_64& random, bool random_ranks, bool equal_gpus) {
  const auto pick = [&random](int32_t from, int32_t to) { return Pick(random, from, to); };
  const int32_t gpus = pick(1, 4);
  const int32_t experts = pick(1, 9);
  int32_t slots = std::max(experts, gpus) + pick(0, 6);
  if (equal_gpus) slots += (gpus - slots % gpus) % gpus;
  const Topology topology = *Topology::Make({.num_layers = pick(1, 4),
                                             .num_experts = experts,
                                             .num_slots = slots,
                                             .num_gpus = gpus,
                                             .num_nodes = gpus % 2 == 0 ? pick(1, 2) : 1,
                                             .num_groups = pick(1, 3)});
  Placement placement = RandomPlacement(random, topology);
  if (random_ranks) return placement;
  return *Placement::FromSlots(topology, placement.physical_to_logical_map());
}

}  // namespace eplb
