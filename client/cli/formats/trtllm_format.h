// The YAML of TensorRT-LLM's moe_config.load_balancer.
#ifndef EPLB_CLIENT_CLI_FORMATS_TRTLLM_FORMAT_H_
#define EPLB_CLIENT_CLI_FORMATS_TRTLLM_FORMAT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "client/cli/formats/format_table.h"

namespace eplb {

// num_slots, layer_updates_per_iter and initial_global_assignments, whose keys are the model's
// layer numbers: 3..60 for DeepSeek-V3, 1, 3, 5 and so on where every other layer is dense. The
// first two may be missing. errors: begin with `path`.
absl::StatusOr<PlacementParts> ParseTrtllmPlacement(const std::string& path,
                                                    std::string_view bytes);

// layer_updates_per_iter is 0: the placement stays as it is. errors: InvalidArgument naming
// --first-layer and --layers when the layers' numbers are unknown.
absl::StatusOr<std::string> WriteTrtllmPlacement(const Placement& placement,
                                                 const WriteOptions& options);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_TRTLLM_FORMAT_H_
