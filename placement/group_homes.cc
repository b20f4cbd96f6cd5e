#include "placement/group_homes.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/hierarchy.h"
#include "placement/search/node_partition.h"
#include "placement/status_macros.h"

namespace eplb {

namespace {

// [N], the sum of the speeds of a node's GPUs.
std::vector<double> NodeSpeeds(const Topology& topology, const GpuSpeeds* speeds) {
  std::vector<double> sums(static_cast<size_t>(topology.num_nodes()));
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    sums[static_cast<size_t>(topology.NodeOf(GpuId{gpu}).value)] +=
        speeds == nullptr ? 1 : speeds->SpeedOf(GpuId{gpu});
  }
  return sums;
}

}  // namespace

absl::StatusOr<IndexMatrix> HomesByLoad(const Load& load, const Topology& topology,
                                        const GpuSpeeds* speeds) {
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the topology has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  EPLB_RETURN_IF_ERROR(CheckHierarchy(topology, Hierarchy::kStrict));
  const std::vector<double> node_speed = NodeSpeeds(topology, speeds);
  // The first node with the same speed.
  std::vector<int32_t> kinds;
  for (size_t node = 0; node < node_speed.size(); ++node) {
    if (node_speed[node] == 0) {
      return absl::InvalidArgumentError(absl::StrCat("node ", node, " has no usable GPU"));
    }
    const auto same = std::find(node_speed.begin(), node_speed.end(), node_speed[node]);
    kinds.push_back(static_cast<int32_t>(same - node_speed.begin()));
  }
  const RealMatrix tokens = load.ToDouble();
  const Eigen::Index per_group = topology.num_experts() / topology.num_groups();
  std::vector<double> of_group(static_cast<size_t>(topology.num_groups()));
  const PartitionProblem problem = {
      .num_groups = topology.num_groups(),
      .num_nodes = topology.num_nodes(),
      .kind_of_node = kinds,
      .cost = [&of_group, &node_speed](int32_t kind, const std::vector<int32_t>& groups) {
        double sum = 0;
        for (const int32_t group : groups) sum += of_group[static_cast<size_t>(group)];
        return sum / node_speed[static_cast<size_t>(kind)];
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
