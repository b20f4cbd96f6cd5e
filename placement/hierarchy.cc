#include "placement/hierarchy.h"

#include "absl/strings/str_cat.h"

namespace eplb {

Hierarchy DefaultHierarchy(const Topology& topology) {
  const bool groups_fit = topology.num_groups() > 1 && topology.num_nodes() > 1 &&
                          topology.num_groups() % topology.num_nodes() == 0;
  return groups_fit ? Hierarchy::kStrict : Hierarchy::kNone;
}

absl::Status CheckHierarchy(const Topology& topology, Hierarchy hierarchy) {
  if (hierarchy == Hierarchy::kNone) return absl::OkStatus();
  const char* name = hierarchy == Hierarchy::kStrict ? "strict" : "soft";
  if (topology.num_groups() % topology.num_nodes() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hierarchy ", name, " needs expert groups in multiples of the ", topology.num_nodes(),
        " nodes, got ", topology.num_groups(), " expert groups"));
  }
  if (topology.num_experts() % topology.num_groups() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hierarchy ", name, " needs experts in multiples of the ", topology.num_groups(),
        " expert groups, got ", topology.num_experts(), " experts"));
  }
  return absl::OkStatus();
}

}  // namespace eplb
