#include "placement/search/node_affinity.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb {

std::optional<std::vector<int32_t>> NodeAffinityOf(const Topology& topology, Hierarchy hierarchy,
                                                   std::span<const int32_t> slots) {
  const auto nodes = AsIndex(topology.num_nodes());
  const auto experts = AsIndex(topology.num_experts());
  const auto per_group = experts / AsIndex(topology.num_groups());
  std::vector<char> held(nodes * experts);
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    if (slots[slot] < 0) continue;
    const NodeId node = topology.NodeOf(topology.GpuOf(SlotId{static_cast<int32_t>(slot)}));
    held[AsIndex(node.value) * experts + AsIndex(slots[slot])] = 1;
  }
  std::vector<int32_t> affinities;
  std::vector<int32_t> groups_of_node(nodes);
  for (size_t first = 0; first < experts; first += per_group) {
    size_t nodes_with_any = 0;
    size_t home = nodes;
    for (size_t node = 0; node < nodes; ++node) {
      const auto begin = held.begin() + static_cast<std::ptrdiff_t>(node * experts + first);
      const auto there =
          AsIndex(std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(per_group), 0));
      nodes_with_any += there > 0 ? 1 : 0;
      if (there == per_group && home == nodes) home = node;
    }
    if (home == nodes || (hierarchy == Hierarchy::kStrict && nodes_with_any > 1)) {
      return std::nullopt;
    }
    affinities.push_back(static_cast<int32_t>(home));
    ++groups_of_node[home];
  }
  const bool even = std::ranges::all_of(groups_of_node, [&](int32_t groups) {
    return groups == topology.num_groups() / topology.num_nodes();
  });
  if (hierarchy == Hierarchy::kStrict && !even) return std::nullopt;
  return affinities;
}

absl::StatusOr<Placement> WithPrimariesOnAffineNode(const Placement& placement,
                                                    Hierarchy hierarchy) {
  if (hierarchy != Hierarchy::kSoft) return placement;
  const Topology& topology = placement.topology();
  const int32_t per_group = topology.num_experts() / topology.num_groups();
  IndexMatrix ranks = placement.replica_rank();
  const auto node_of = [&](int32_t slot) {
    return topology.NodeOf(topology.GpuOf(SlotId{slot})).value;
  };
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const auto row = placement.physical_to_logical_map().row(layer);
    const auto affinities = NodeAffinityOf(topology, hierarchy, {row.data(), AsIndex(row.size())});
    if (!affinities.has_value()) continue;
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const int32_t home = (*affinities)[AsIndex(expert / per_group)];
      const auto replicas = placement.ReplicasOf(LayerId{layer}, ExpertId{expert});
      if (node_of(replicas.front()) == home) continue;
      std::vector<int32_t> rising(replicas.begin(), replicas.end());
      std::ranges::sort(rising);
      const auto primary =
          std::ranges::find_if(rising, [&](int32_t slot) { return node_of(slot) == home; });
      std::rotate(rising.begin(), primary, primary + 1);
      for (size_t rank = 0; rank < rising.size(); ++rank) {
        ranks(layer, rising[rank]) = static_cast<int32_t>(rank);
      }
    }
  }
  return Placement::FromSlotsAndRanks(topology, placement.physical_to_logical_map(), ranks);
}

absl::StatusOr<CrossingShare> ComputeCrossingShare(const Load& load, const Placement& placement,
                                                   const RealMatrix* shares) {
  const Topology& topology = placement.topology();
  EPLB_RETURN_IF_ERROR(CheckLoadFits(load, topology, "placement"));
  EPLB_RETURN_IF_ERROR(CheckHierarchy(topology, Hierarchy::kSoft));
  const RealMatrix tokens = load.ToDouble();
  const IndexMatrix& slots = placement.physical_to_logical_map();
  const int32_t per_group = topology.num_experts() / topology.num_groups();
  CrossingShare result;
  double sum = 0;
  int32_t layers_with_load = 0;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const std::optional<std::vector<int32_t>> affinities = NodeAffinityOf(
        topology, Hierarchy::kSoft, {&slots(layer, 0), AsIndex(topology.num_slots())});
    if (!affinities.has_value()) {
      return InvalidInput("layer ", layer,
                          ": an expert group has no node that holds all its experts");
    }
    double crossing = 0;
    const double total = tokens.row(layer).sum();
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      const int32_t expert = slots(layer, slot);
      if (expert < 0) continue;
      const NodeId node = topology.NodeOf(topology.GpuOf(SlotId{slot}));
      if ((*affinities)[AsIndex(expert / per_group)] == node.value) continue;
      const double share = shares == nullptr
                               ? 1.0 / placement.logical_replica_count()(layer, expert)
                               : (*shares)(layer, slot);
      crossing += tokens(layer, expert) * share;
    }
    const double part = total > 0 ? std::clamp(crossing / total, 0.0, 1.0) : 0.0;
    result.max = std::max(result.max, part);
    sum += part;
    layers_with_load += total > 0 ? 1 : 0;
  }
  if (layers_with_load > 0) result.mean = sum / layers_with_load;
  return result;
}

}  // namespace eplb
