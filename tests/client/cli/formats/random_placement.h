// Placements to write and read back.
#ifndef EPLB_TESTS_CLIENT_CLI_FORMATS_RANDOM_PLACEMENT_H_
#define EPLB_TESTS_CLIENT_CLI_FORMATS_RANDOM_PLACEMENT_H_

#include <algorithm>
#include <random>
#include <vector>

#include "placement/placement.h"

namespace eplb {

// 1..4 layers, up to 9 experts and 4 GPUs; replicas in random slots, and in random order when
// `random_ranks`. Each GPU holds as many slots when `equal_gpus`.
inline Placement RandomPlacement(std::mt19937_64& random, bool random_ranks, bool equal_gpus) {
  auto pick = [&random](int32_t from, int32_t to) {
    return std::uniform_int_distribution<int32_t>(from, to)(random);
  };
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
  IndexMatrix map(topology.num_layers(), slots);
  IndexMatrix ranks(topology.num_layers(), slots);
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<int32_t> row;
    row.reserve(static_cast<size_t>(slots));
    for (int32_t slot = 0; slot < slots; ++slot) {
      row.push_back(slot < experts ? slot : pick(0, experts - 1));
    }
    std::shuffle(row.begin(), row.end(), random);
    std::vector<int32_t> order(row.size());
    for (int32_t slot = 0; slot < slots; ++slot) order[static_cast<size_t>(slot)] = slot;
    if (random_ranks) std::shuffle(order.begin(), order.end(), random);
    std::vector<int32_t> seen(static_cast<size_t>(experts));
    for (const int32_t slot : order) {
      map(layer, slot) = row[static_cast<size_t>(slot)];
      ranks(layer, slot) = seen[static_cast<size_t>(map(layer, slot))]++;
    }
  }
  return *Placement::FromSlotsAndRanks(topology, map, ranks);
}

}  // namespace eplb

#endif  // EPLB_TESTS_CLIENT_CLI_FORMATS_RANDOM_PLACEMENT_H_
