// The YAML of TensorRT-LLM's moe_config.load_balancer.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_FORMATS_TRTLLM_FORMAT_H_
#define EPLB_CLIENT_CLI_FORMATS_TRTLLM_FORMAT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/formats/format_table.h"
#include "client/cli/formats/load_window.h"

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

// The directory of expert statistics that TensorRT-LLM writes with EXPERT_STATISTIC_PATH.
// threads: safe, no state.

// Whether it is a directory with meta_info.json.
bool IsTrtllmStatistics(const std::string& path);

// meta_info.json {num_experts, num_experts_per_token[, ep_size]} and rank0.safetensors,
// rank1.safetensors, .. with int64 [num_experts] under "{iteration}_{layer}". Counts are summed
// over ranks; each iteration is a window; LoadFile::layers has the model's layer numbers, which may
// have gaps. errors, beginning with the file's path: NotFound; InvalidArgument: a rank without its
// file or with other keys than rank 0, an iteration with other layers than the first, a negative
// count, a sum above 2^63-1.
absl::StatusOr<LoadFile> ReadTrtllmStatistics(const std::string& path);

// The safetensors container: a JSON header that says where each tensor lies, and the raw numbers.
// threads: safe, no state.

struct SafeTensor {
  std::string name;
  std::string dtype;           // e.g. "I64"
  std::vector<int64_t> shape;  // at most 8 dimensions
  std::string_view data;       // into the file's bytes
};

// In the order of the header. errors: InvalidArgument, naming the tensor: a header that is cut off,
// longer than the file or no JSON, a tensor outside the file, tensors that overlap or leave a gap.
// Nothing is allocated from a size that the bytes do not bear out.
// source: the format's description at github.com/huggingface/safetensors.
absl::StatusOr<std::vector<SafeTensor>> ParseSafetensors(std::string_view bytes);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_TRTLLM_FORMAT_H_
