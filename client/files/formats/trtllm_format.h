// The YAML of TensorRT-LLM's moe_config.load_balancer.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_FORMATS_TRTLLM_FORMAT_H_
#define EPLB_CLIENT_FILES_FORMATS_TRTLLM_FORMAT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "client/files/formats/format_table.h"

namespace eplb {

// num_slots, layer_updates_per_iter and initial_global_assignments, whose keys are the model's
// layer numbers (3..60 for DeepSeek-V3) and must have no gap. errors: begin with `path`.
absl::StatusOr<PlacementParts> ParseTrtllmPlacement(const std::string& path,
                                                    std::string_view bytes);

// layer_updates_per_iter is 0: the placement stays as it is. errors: InvalidArgument naming
// --first-layer when the number of the first layer is unknown.
absl::StatusOr<std::string> WriteTrtllmPlacement(const Placement& placement,
                                                 const WriteOptions& options);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_FORMATS_TRTLLM_FORMAT_H_
