#include "client/files/formats/placement_parts.h"

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"

namespace eplb {
namespace {

absl::StatusOr<std::optional<int32_t>> Merge(const char* flag, const std::optional<int32_t>& file,
                                             const std::optional<int32_t>& given) {
  if (file.has_value() && given.has_value() && *file != *given) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file says ", *file, ", ", flag, " says ", *given));
  }
  return file.has_value() ? file : given;
}

// An id that cannot be one, whatever the number of experts, is named here: counted as the largest
// id it would only make the shape absurd.
absl::StatusOr<int32_t> CountExperts(const IndexMatrix& slots) {
  for (Eigen::Index i = 0; i < slots.size(); ++i) {
    if (slots.data()[i] < slots.cols()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "layer ", i / slots.cols(), " slot ", i % slots.cols(), " holds expert ", slots.data()[i],
        ", but ", slots.cols(), " slots hold experts 0..", slots.cols() - 1, " at most"));
  }
  return slots.maxCoeff() + 1;
}

}  // namespace

absl::StatusOr<FrameNumbers> MergeFrames(const FrameNumbers& file, const FrameNumbers& flags) {
  FrameNumbers merged;
  EPLB_ASSIGN_OR_RETURN(merged.num_gpus, Merge("--gpus", file.num_gpus, flags.num_gpus));
  EPLB_ASSIGN_OR_RETURN(merged.num_nodes, Merge("--nodes", file.num_nodes, flags.num_nodes));
  EPLB_ASSIGN_OR_RETURN(merged.num_groups, Merge("--groups", file.num_groups, flags.num_groups));
  EPLB_ASSIGN_OR_RETURN(merged.first_layer,
                        Merge("--first-layer", file.first_layer, flags.first_layer));
  return merged;
}

absl::StatusOr<Placement> MakePlacement(const PlacementParts& parts, const FrameNumbers& frame) {
  TopologyOptions options{.num_layers = static_cast<int32_t>(parts.slots.rows()),
                          .num_slots = static_cast<int32_t>(parts.slots.cols()),
                          .num_gpus = frame.num_gpus.value_or(1),
                          .num_nodes = frame.num_nodes.value_or(1),
                          .num_groups = frame.num_groups.value_or(1)};
  EPLB_ASSIGN_OR_RETURN(const int32_t experts, CountExperts(parts.slots));
  options.num_experts = parts.num_experts.value_or(experts);
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(options));
  if (parts.ranks.has_value()) {
    return Placement::FromSlotsAndRanks(topology, parts.slots, *parts.ranks);
  }
  return Placement::FromSlots(topology, parts.slots);
}

}  // namespace eplb
