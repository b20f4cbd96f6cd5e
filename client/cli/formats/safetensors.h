// The safetensors container: a JSON header with the place of each tensor, and the raw numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

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
