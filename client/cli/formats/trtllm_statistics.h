// The directory of expert statistics that TensorRT-LLM writes with EXPERT_STATISTIC_PATH.
#ifndef EPLB_CLIENT_CLI_FORMATS_TRTLLM_STATISTICS_H_
#define EPLB_CLIENT_CLI_FORMATS_TRTLLM_STATISTICS_H_

#include <string>

#include "absl/status/statusor.h"

#include "client/cli/formats/load_window.h"

namespace eplb {

// True for a directory with meta_info.json.
bool IsTrtllmStatistics(const std::string& path);

// meta_info.json {num_experts, num_experts_per_token[, ep_size]} and rank0.safetensors,
// rank1.safetensors, .. with int64 [num_experts] under "{iteration}_{layer}". Counts are summed
// over ranks; each iteration is a window; LoadFile::layers has the model's layer numbers, which may
// have gaps. errors, beginning with the file's path: NotFound; InvalidArgument: a rank without its
// file or with other keys than rank 0, an iteration with other layers than the first, a negative
// count, a sum above 2^63-1.
absl::StatusOr<LoadFile> ReadTrtllmStatistics(const std::string& path);

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_TRTLLM_STATISTICS_H_
