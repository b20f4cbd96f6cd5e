#include "placement/search/bound.h"

#include <cstdint>
#include <span>

#include "base/status_macros.h"
#include "placement/search/domain.h"
#include "placement/search/domain_bound.h"
#include "placement/search/node_partition.h"

namespace eplb {
namespace {

// The problem whose cost of a node is the bound of its domain with its expert groups.
PartitionProblem ByNodeBound(std::span<const double> load, int32_t num_groups,
                             std::span<const Domain> nodes, bool any_split) {
  const size_t per_group = load.size() / AsIndex(num_groups);
  return {.num_groups = num_groups,
          .num_nodes = static_cast<int32_t>(nodes.size()),
          .kind_of_node = KindsOf(nodes),
          .cost = [=](int32_t kind, const std::vector<int32_t>& groups) {
            Domain domain = nodes[AsIndex(kind)];
            for (const int32_t group : groups) {
              const auto part = load.subspan(AsIndex(group) * per_group, per_group);
              domain.load.insert(domain.load.end(), part.begin(), part.end());
            }
            return DomainBound(domain, any_split);
          }};
}

}  // namespace

absl::StatusOr<std::vector<double>> LowerBounds(const Load& load, const Topology& topology,
                                                const BoundOptions& options) {
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  const GpuSpeeds& speeds = options.speeds == nullptr ? equal : *options.speeds;
  EPLB_RETURN_IF_ERROR(CheckLoadFits(load, topology));
  EPLB_RETURN_IF_ERROR(CheckHierarchy(topology, options.hierarchy));
  Domain whole = DomainOf(topology, speeds, 0, topology.num_gpus());
  const std::vector<Domain> nodes = NodeDomains(topology, speeds);
  const RealMatrix tokens = load.ToDouble();
  std::vector<double> bounds;
  for (Eigen::Index layer = 0; layer < tokens.rows(); ++layer) {
    const std::span row(&tokens(layer, 0), AsIndex(tokens.cols()));
    if (options.hierarchy == Hierarchy::kStrict) {
      const PartitionProblem problem =
          ByNodeBound(row, topology.num_groups(), nodes, options.any_split);
      if (CanEnumerate(problem)) {
        bounds.push_back(CheapestPartitions(problem, 1).front().cost);
        continue;
      }
    }
    whole.load.assign(row.begin(), row.end());
    bounds.push_back(DomainBound(whole, options.any_split));
  }
  return bounds;
}

}  // namespace eplb
