// {"3":[experts in slot order],"4":[..]}: how TensorRT-LLM and vLLM write a placement.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_FORMATS_LAYER_ASSIGNMENTS_H_
#define EPLB_CLIENT_FILES_FORMATS_LAYER_ASSIGNMENTS_H_

#include <cstdint>

#include "absl/status/statusor.h"

#include "placement/placement.h"
#include "proto/wire/json_value.h"

namespace eplb {

struct LayerAssignments {
  int32_t first_layer = 0;  // the smallest key
  IndexMatrix slots;        // [layers, num_slots], rows in rising order of their keys
};

// The member initial_global_assignments of `object`, in any order of keys.
// errors: InvalidArgument, naming the layer: a key that is no layer number, a layer missing between
// others, a row of another length, an id out of range.
absl::StatusOr<LayerAssignments> ReadLayerAssignments(const wire::JsonValue& object,
                                                      int64_t num_slots);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_FORMATS_LAYER_ASSIGNMENTS_H_
