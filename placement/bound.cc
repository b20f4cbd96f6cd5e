#include "placement/bound.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/search/domain.h"
#include "placement/search/domain_bound.h"
#include "placement/search/node_partition.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

absl::Status CheckFits(const char* place, const Domain& domain, int32_t experts) {
  if (domain.slots.empty() || domain.num_slots() < experts) {
    return absl::InvalidArgumentError(absl::StrCat(domain.slots.empty() ? 0 : domain.num_slots(),
                                                   " usable slots ", place, " for ", experts,
                                                   " experts"));
  }
  return absl::OkStatus();
}

// Bounds of layers whose expert groups each stay on one node.
class StrictBounds {
 public:
  StrictBounds(const Topology& topology, const GpuSpeeds& speeds, bool any_split)
      : topology_(topology), any_split_(any_split) {
    const int32_t gpus = topology.num_gpus() / topology.num_nodes();
    for (int32_t node = 0; node < topology.num_nodes(); ++node) {
      Domain domain = DomainOf(topology, speeds, node * gpus, (node + 1) * gpus);
      const auto same = std::find_if(nodes_.begin(), nodes_.end(), [&](const Domain& other) {
        return other.slots == domain.slots && other.speed == domain.speed;
      });
      kind_of_node_.push_back(static_cast<int32_t>(same - nodes_.begin()));
      nodes_.push_back(std::move(domain));
    }
  }

  absl::Status Check() const {
    for (const Domain& node : nodes_) {
      EPLB_RETURN_IF_ERROR(
          CheckFits("on a node", node, topology_.num_experts() / topology_.num_nodes()));
    }
    return absl::OkStatus();
  }

  bool CanBound() const { return CanEnumerate(ProblemFor({})); }

  double BoundOf(std::span<const double> load) const {
    return CheapestPartitions(ProblemFor(load), 1).front().cost;
  }

 private:
  PartitionProblem ProblemFor(std::span<const double> load) const {
    const auto per_group = static_cast<size_t>(topology_.num_experts() / topology_.num_groups());
    return {.num_groups = topology_.num_groups(),
            .num_nodes = topology_.num_nodes(),
            .kind_of_node = kind_of_node_,
            .cost = [this, load, per_group](int32_t kind, const std::vector<int32_t>& groups) {
              Domain domain = nodes_[static_cast<size_t>(kind)];
              for (const int32_t group : groups) {
                const auto part = load.subspan(static_cast<size_t>(group) * per_group, per_group);
                domain.load.insert(domain.load.end(), part.begin(), part.end());
              }
              return DomainBound(domain, any_split_);
            }};
  }

  const Topology& topology_;
  bool any_split_;
  std::vector<Domain> nodes_;
  std::vector<int32_t> kind_of_node_;
};

absl::Status CheckShapes(const Load& load, const Topology& topology, const GpuSpeeds& speeds) {
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the topology has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  if (speeds.num_gpus() != topology.num_gpus()) {
    return absl::InvalidArgumentError(
        absl::StrCat(speeds.num_gpus(), " GPU speeds for ", topology.num_gpus(), " GPUs"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<double>> LowerBounds(const Load& load, const Topology& topology,
                                                const BoundOptions& options) {
  const GpuSpeeds equal = GpuSpeeds::Equal(topology.num_gpus());
  const GpuSpeeds& speeds = options.speeds == nullptr ? equal : *options.speeds;
  EPLB_RETURN_IF_ERROR(CheckShapes(load, topology, speeds));
  EPLB_RETURN_IF_ERROR(CheckHierarchy(topology, options.hierarchy));
  Domain whole = DomainOf(topology, speeds, 0, topology.num_gpus());
  EPLB_RETURN_IF_ERROR(CheckFits("on all GPUs", whole, topology.num_experts()));
  std::optional<StrictBounds> strict;
  if (options.hierarchy == Hierarchy::kStrict) {
    strict.emplace(topology, speeds, options.any_split);
    EPLB_RETURN_IF_ERROR(strict->Check());
    if (!strict->CanBound()) strict.reset();
  }
  const RealMatrix tokens = load.ToDouble();
  std::vector<double> bounds;
  for (Eigen::Index layer = 0; layer < tokens.rows(); ++layer) {
    const std::span row(&tokens(layer, 0), static_cast<size_t>(tokens.cols()));
    if (strict.has_value()) {
      bounds.push_back(strict->BoundOf(row));
    } else {
      whole.load.assign(row.begin(), row.end());
      bounds.push_back(DomainBound(whole, options.any_split));
    }
  }
  return bounds;
}

}  // namespace eplb
