// Partitions of the expert groups among nodes that keep the dearest node cheap.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/search/domain.h"
#include "placement/topology.h"

namespace eplb {

// Expert groups in equal number on every node.
struct NodePartition {
  std::vector<int32_t> node_of_group;  // [K]
  double cost = 0;                     // cost of the dearest node
};

struct PartitionProblem {
  int32_t num_groups = 0;
  int32_t num_nodes = 0;  // divides num_groups
  // Nodes with the same kind are interchangeable. [N]
  std::vector<int32_t> kind_of_node;
  // Cost of a set of groups on a kind of node. The groups rise, unless there are too many
  // partitions to enumerate.
  std::function<double(int32_t kind, const std::vector<int32_t>& groups)> cost;
};

// Largest number of partitions that are enumerated: 8 groups on 4 nodes have 105, 16 on 4 have 2.6
// million.
inline constexpr int64_t kMaxPartitions = 20'000;

// True if CheapestPartitions enumerates all partitions, so that its first answer is the best.
bool CanEnumerate(const PartitionProblem& problem);

// Returns the `most` partitions with the least cost of the dearest node, cheapest first, the first
// found on ties. If there are too many to enumerate, returns one. It gives groups by falling cost
// to the node with room that costs least so far, then exchanges groups of the dearest node while
// that helps. threads: safe, no state.
std::vector<NodePartition> CheapestPartitions(const PartitionProblem& problem, int32_t most);

// The cost of the dearest node of a partition.
double CostOf(const PartitionProblem& problem, const NodePartition& partition);

// The problem whose cost of a node is the load of its groups / the sum of its GPUs' speeds, the
// largest of several loads. loads: each [E] of a layer, at least one; nodes: [N], without loads.
PartitionProblem ByNodeLoad(std::span<const std::span<const double>> loads, int32_t num_groups,
                            std::span<const Domain> nodes);

// Returns the node of each expert group in each layer, [L, K], with as many groups on every node
// and the least load / speed of the fullest node that CheapestPartitions finds. PlaceEvenly needs
// these nodes under a strict hierarchy, because only the loads of nodes matter there.
//
// errors: InvalidArgument if load and topology differ in layers or experts, K % N or E % K is not
// 0, or a node has no usable GPU. cost: O(L * ways), O(L * E). threads: safe, no state.
absl::StatusOr<IndexMatrix> NodesOfGroups(const Load& load, const Topology& topology,
                                          const GpuSpeeds& speeds);

}  // namespace eplb
