// Finds per-expert tensors that were not registered: every expert moves by one slot and back, and
// what it computes must not change.
#ifndef EPLB_CLIENT_EXPERT_CHECK_H_
#define EPLB_CLIENT_EXPERT_CHECK_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/placement.h"
#include "placement/rank_grid.h"

namespace eplb {

// `placement` with each expert of a layer one slot further, over the slots that hold any; what was
// in the last one goes into the first.
absl::StatusOr<Placement> RotateLayer(const Placement& placement, LayerId layer);

// What the probe said on one rank about the local slots of a layer; 0 where a slot holds no expert.
struct SlotOutputs {
  std::string error;  // of the probe; empty when there was none
  std::vector<uint64_t> before;
  std::vector<uint64_t> moved;  // under the rotated placement
  std::vector<uint64_t> back;

  friend bool operator==(const SlotOutputs&, const SlotOutputs&) = default;
};
std::string EncodeOutputs(const SlotOutputs& outputs);
// errors: InvalidArgument for anything but what EncodeOutputs gives.
absl::StatusOr<SlotOutputs> DecodeOutputs(std::string_view text);

// A layer that was moved and back.
struct CheckedLayer {
  const Placement& here;
  const Placement& rotated;
  LayerId layer;
  const RankGrid& grid;
  int32_t pipeline_stage = 0;  // whose ranks hold it
};

// The verdict on a layer, from what all ranks said, in rank order: equal on all ranks.
// errors: InvalidArgument naming layer, expert, slots and rank when an expert's output changed with
// its place, or its replicas differ before anything moves; FailedPrecondition when a probe failed,
// naming the rank, or when all experts give the same output, so that nothing could be found;
// Internal when a rank spoke of other slots than it has.
absl::Status CompareOutputs(const CheckedLayer& checked, std::span<const SlotOutputs> ranks);

}  // namespace eplb

#endif  // EPLB_CLIENT_EXPERT_CHECK_H_
