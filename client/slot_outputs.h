// The outputs of a layer's experts before, during and after a move by one slot: a change shows a
// tensor that was not registered.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/start.h"
#include "placement/placement.h"
#include "placement/rank_grid.h"

namespace eplb {

// Returns `placement` with each expert of a layer moved to the next slot that holds an expert; the
// expert in the last such slot moves to the first.
absl::StatusOr<Placement> RotateLayer(const Placement& placement, LayerId layer);

// The probe's outputs on one rank for the local slots of a layer; 0 if a slot holds no expert.
struct SlotOutputs {
  std::string error;  // error of the probe; empty if there was none
  std::vector<uint64_t> before;
  std::vector<uint64_t> moved;  // under the rotated placement
  std::vector<uint64_t> back;

  friend bool operator==(const SlotOutputs&, const SlotOutputs&) = default;
};
StartFields FieldsOf(const SlotOutputs& outputs);
// errors: for fields that FieldsOf does not give.
absl::StatusOr<SlotOutputs> OutputsFrom(const StartFields& fields);

// A layer that was moved there and back.
struct CheckedLayer {
  const Placement& here;
  const Placement& rotated;
  LayerId layer;
  const RankGrid& grid;
  int32_t pipeline_stage = 0;  // its ranks hold the layer
};

// Judges a layer by the outputs of all ranks, in rank order; equal on all ranks.
// errors: InvalidArgument naming layer, expert, slots and rank if an expert's output changed with
// its slot, or if its replicas differ before anything moves. FailedPrecondition if a probe failed,
// naming the rank, or if all experts give the same output, so that no tensor can be found. Internal
// if a rank reports another number of slots than it has.
absl::Status CompareOutputs(const CheckedLayer& checked, std::span<const SlotOutputs> ranks);

}  // namespace eplb
