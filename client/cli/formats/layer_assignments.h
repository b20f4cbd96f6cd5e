// {"3":[experts in slot order],"4":[..]}: how TensorRT-LLM and vLLM write a placement.
// threads: safe, no state.
#pragma once

#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/cli/formats/layer_numbers.h"
#include "placement/placement.h"

namespace eplb {

struct LayerAssignments {
  LayerNumbers layers = {};  // the keys, rising
  IndexMatrix slots;         // [layers, num_slots]
};

// The member initial_global_assignments of `object`, whose keys may be in any order and have gaps.
// The rows imply num_slots if `object` has none. errors: InvalidArgument, naming the layer: a key
// that is no layer number, a row of another length, an id out of range.
absl::StatusOr<LayerAssignments> ReadLayerAssignments(const wire::JsonValue& object);

}  // namespace eplb
