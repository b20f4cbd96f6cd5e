// What a placement file of another system says, and how it becomes a Placement.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_FORMATS_PLACEMENT_PARTS_H_
#define EPLB_CLIENT_FILES_FORMATS_PLACEMENT_PARTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Numbers that a file or the command line may give.
struct FrameNumbers {
  std::optional<int32_t> num_gpus;
  std::optional<int32_t> num_nodes;
  std::optional<int32_t> num_groups;
  std::optional<int32_t> first_layer;  // the model's number of MoE layer 0
};

struct PlacementParts {
  IndexMatrix slots;                   // physical_to_logical_map [L, S], not checked
  std::optional<IndexMatrix> ranks;    // replica ranks [L, S], where the format has them
  std::optional<int32_t> num_experts;  // else the largest id + 1: every expert is in a slot
  FrameNumbers frame;
  std::optional<RealMatrix> shares;  // replica_share [L, S], right for these slots
  std::vector<std::string> notes;    // what was left out, a sentence each
};

// The numbers of both. errors: InvalidArgument, naming the flag, when they contradict each other.
absl::StatusOr<FrameNumbers> MergeFrames(const FrameNumbers& file, const FrameNumbers& flags);

// What nobody gave is 1. errors: InvalidArgument, naming layer and slot, as Placement and Topology.
absl::StatusOr<Placement> MakePlacement(const PlacementParts& parts, const FrameNumbers& frame);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_FORMATS_PLACEMENT_PARTS_H_
