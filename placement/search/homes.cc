#include "placement/search/homes.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace eplb {

std::optional<std::vector<int32_t>> HomesOf(const Topology& topology, Hierarchy hierarchy,
                                            std::span<const int32_t> slots) {
  const auto nodes = static_cast<size_t>(topology.num_nodes());
  const auto experts = static_cast<size_t>(topology.num_experts());
  const auto per_group = experts / static_cast<size_t>(topology.num_groups());
  std::vector<char> held(nodes * experts);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] < 0) continue;
    const NodeId node = topology.NodeOf(topology.GpuOf(SlotId{static_cast<int32_t>(slot)}));
    held[static_cast<size_t>(node.value) * experts + static_cast<size_t>(slots[slot])] = 1;
  }
  std::vector<int32_t> homes;
  std::vector<int32_t> groups_of_node(nodes);
  for (size_t first = 0; first < experts; first += per_group) {
    size_t nodes_with_any = 0;
    size_t home = nodes;
    for (size_t node = 0; node < nodes; ++node) {
      const auto begin = held.begin() + static_cast<std::ptrdiff_t>(node * experts + first);
      const auto there = static_cast<size_t>(
          std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(per_group), 0));
      nodes_with_any += there > 0 ? 1 : 0;
      if (there == per_group && home == nodes) home = node;
    }
    if (home == nodes || (hierarchy == Hierarchy::kStrict && nodes_with_any > 1)) {
      return std::nullopt;
    }
    homes.push_back(static_cast<int32_t>(home));
    ++groups_of_node[home];
  }
  const bool even = std::all_of(groups_of_node.begin(), groups_of_node.end(), [&](int32_t groups) {
    return groups == topology.num_groups() / topology.num_nodes();
  });
  if (hierarchy == Hierarchy::kStrict && !even) return std::nullopt;
  return homes;
}

absl::StatusOr<Placement> WithPrimariesAtHome(const Placement& placement, Hierarchy hierarchy) {
  const Topology& topology = placement.topology();
  const int32_t per_group = topology.num_experts() / topology.num_groups();
  IndexMatrix ranks = placement.replica_rank();
  const auto node_of = [&](int32_t slot) {
    return topology.NodeOf(topology.GpuOf(SlotId{slot})).value;
  };
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const auto row = placement.physical_to_logical_map().row(layer);
    const auto homes = HomesOf(topology, hierarchy, {row.data(), static_cast<size_t>(row.size())});
    if (!homes.has_value()) continue;
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const int32_t home = (*homes)[static_cast<size_t>(expert / per_group)];
      const auto replicas = placement.ReplicasOf(LayerId{layer}, ExpertId{expert});
      if (node_of(replicas.front()) == home) continue;
      std::vector<int32_t> rising(replicas.begin(), replicas.end());
      std::sort(rising.begin(), rising.end());
      const auto primary = std::find_if(rising.begin(), rising.end(),
                                        [&](int32_t slot) { return node_of(slot) == home; });
      std::rotate(rising.begin(), primary, primary + 1);
      for (size_t rank = 0; rank < rising.size(); ++rank) {
        ranks(layer, rising[rank]) = static_cast<int32_t>(rank);
      }
    }
  }
  return Placement::FromSlotsAndRanks(topology, placement.physical_to_logical_map(), ranks);
}

}  // namespace eplb
