// Where the rows of the registered tensors lie.
#ifndef EPLB_CLIENT_MIGRATION_ROW_MEMORY_H_
#define EPLB_CLIENT_MIGRATION_ROW_MEMORY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "client/migration/executor.h"

namespace eplb {

struct RowMemory {
  std::optional<int32_t> device;  // CUDA's number; absent: host memory

  std::string Text() const;  // "host memory", "memory of device 3"
};

// Asks CUDA, where there is a usable one; without it all memory is the host's. Memory that CUDA
// pinned or manages counts as the host's. errors: InvalidArgument naming two tensors that lie in
// different memories, or one that CUDA does not know; Internal.
absl::StatusOr<RowMemory> FindMemory(std::span<const ExpertTensor> tensors);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_ROW_MEMORY_H_
