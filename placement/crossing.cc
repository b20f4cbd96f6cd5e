#include "placement/crossing.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"

#include "placement/hierarchy.h"
#include "placement/search/homes.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

absl::Status CheckShapes(const Load& load, const Topology& topology, const RealMatrix* shares) {
  if (load.num_layers() != topology.num_layers() || load.num_experts() != topology.num_experts()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "load has ", load.num_layers(), " layers x ", load.num_experts(),
        " experts, the placement has ", topology.num_layers(), " x ", topology.num_experts()));
  }
  if (shares != nullptr &&
      (shares->rows() != topology.num_layers() || shares->cols() != topology.num_slots())) {
    return absl::InvalidArgumentError(
        absl::StrCat("shares are ", shares->rows(), " x ", shares->cols(), ", expected ",
                     topology.num_layers(), " layers x ", topology.num_slots(), " slots"));
  }
  return CheckHierarchy(topology, Hierarchy::kSoft);
}

}  // namespace

absl::StatusOr<CrossingShare> ComputeCrossingShare(const Load& load, const Placement& placement,
                                                   const RealMatrix* shares) {
  const Topology& topology = placement.topology();
  EPLB_RETURN_IF_ERROR(CheckShapes(load, topology, shares));
  const RealMatrix tokens = load.ToDouble();
  const IndexMatrix& slots = placement.physical_to_logical_map();
  const int32_t per_group = topology.num_experts() / topology.num_groups();
  CrossingShare result;
  double sum = 0;
  int32_t layers_with_load = 0;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const std::optional<std::vector<int32_t>> homes = HomesOf(
        topology, Hierarchy::kSoft, {&slots(layer, 0), static_cast<size_t>(topology.num_slots())});
    if (!homes.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", layer, ": an expert group has no node that holds all its experts"));
    }
    double crossing = 0;
    const double total = tokens.row(layer).sum();
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      const int32_t expert = slots(layer, slot);
      if (expert < 0) continue;
      const NodeId node = topology.NodeOf(topology.GpuOf(SlotId{slot}));
      if ((*homes)[static_cast<size_t>(expert / per_group)] == node.value) continue;
      const double share = shares == nullptr
                               ? 1.0 / placement.logical_replica_count()(layer, expert)
                               : (*shares)(layer, slot);
      crossing += tokens(layer, expert) * share;
    }
    const double part = total > 0 ? std::clamp(crossing / total, 0.0, 1.0) : 0.0;
    result.per_layer.push_back(part);
    result.max = std::max(result.max, part);
    sum += part;
    layers_with_load += total > 0 ? 1 : 0;
  }
  if (layers_with_load > 0) result.mean = sum / layers_with_load;
  return result;
}

}  // namespace eplb
