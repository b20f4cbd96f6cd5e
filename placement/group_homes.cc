#include "placement/group_homes.h"

#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/hierarchy.h"
#include "placement/search/node_partition.h"
#include "placement/status_macros.h"

namespace eplb {

absl::StatusOr<IndexMatrix> HomesByLoad(const Load& load, const Topology& topology) {
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the topology has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  EPLB_RETURN_IF_ERROR(CheckHierarchy(topology, Hierarchy::kStrict));
  const RealMatrix tokens = load.ToDouble();
  const Eigen::Index per_group = topology.num_experts() / topology.num_groups();
  std::vector<double> of_group(static_cast<size_t>(topology.num_groups()));
  const PartitionProblem problem = {
      .num_groups = topology.num_groups(),
      .num_nodes = topology.num_nodes(),
      .kind_of_node = std::vector<int32_t>(static_cast<size_t>(topology.num_nodes()), 0),
      .cost = [&of_group](int32_t /*kind*/, const std::vector<int32_t>& groups) {
        double sum = 0;
        for (const int32_t group : groups) sum += of_group[static_cast<size_t>(group)];
        return sum;
      }};
  IndexMatrix homes(topology.num_layers(), topology.num_groups());
  for (Eigen::Index layer = 0; layer < tokens.rows(); ++layer) {
    for (size_t group = 0; group < of_group.size(); ++group) {
      const Eigen::Index first = static_cast<Eigen::Index>(group) * per_group;
      of_group[group] = tokens.row(layer).segment(first, per_group).sum();
    }
    const NodePartition best = CheapestPartitions(problem, 1).front();
    for (size_t group = 0; group < of_group.size(); ++group) {
      homes(layer, static_cast<Eigen::Index>(group)) = best.node_of_group[group];
    }
  }
  return homes;
}

}  // namespace eplb
