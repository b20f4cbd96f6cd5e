// Which node each expert group lives on, under a strict or soft hierarchy.
#ifndef EPLB_PLACEMENT_SEARCH_NODE_PARTITION_H_
#define EPLB_PLACEMENT_SEARCH_NODE_PARTITION_H_

#include <cstdint>
#include <functional>
#include <vector>

namespace eplb {

// Expert groups in equal number on every node.
struct NodePartition {
  std::vector<int32_t> node_of_group;  // [K]
  double cost = 0;                     // of the dearest node
};

struct PartitionProblem {
  int32_t num_groups = 0;
  int32_t num_nodes = 0;  // divides num_groups
  // Nodes with the same kind are interchangeable. [N]
  std::vector<int32_t> kind_of_node;
  // What a kind of node has to bear for a set of groups, given by rising number (in any order where
  // there are too many partitions to enumerate).
  std::function<double(int32_t kind, const std::vector<int32_t>& groups)> cost;
};

// Upper limit on partitions that are looked at one by one: 8 groups on 4 nodes have 105, 16 on 4
// have 2.6 million.
inline constexpr int64_t kMaxPartitions = 20'000;

// All partitions were looked at, so that the first answer is the best.
bool CanEnumerate(const PartitionProblem& problem);

// The `most` partitions with the least cost of the dearest node, cheapest first, the first found on
// ties. Where there are too many to enumerate: one, groups by falling cost each to the node
// with room that costs least so far, then exchanges between the dearest node and others while they
// help. threads: safe, no state.
std::vector<NodePartition> CheapestPartitions(const PartitionProblem& problem, int32_t most);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_NODE_PARTITION_H_
