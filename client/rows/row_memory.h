// Memory of the registered tensors: the host's, or a GPU's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "client/rows/expert_tensors.h"

namespace eplb {

struct RowMemory {
  std::optional<int32_t> device;  // CUDA's number; absent: host memory
  std::string no_device;          // why CUDA can use no GPU here; empty when it can

  std::string Text() const;  // "host memory", "memory of device 3"
};

// Asks CUDA; where it can use no GPU, all memory is the host's. Pinned memory is the host's. No
// device gets a context of this process by it.
// errors: InvalidArgument naming two tensors that lie in different memories, or one in managed
// memory, which no stream orders; FailedPrecondition naming a tensor of a GPU that we cannot
// use, though the process does; Internal.
absl::StatusOr<RowMemory> FindMemory(std::span<const ExpertTensor> tensors);

// Returns the memory for a rank without tensors: that of the current device, or the host's if CUDA
// can use no device. errors: Internal.
absl::StatusOr<RowMemory> MemoryInUse();

}  // namespace eplb
