// Finds the owner of a pointer's memory by the CUDA driver that the process has loaded. It also
// works if only the training framework's CUDA runtime can use that driver, or if this build has
// none.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace eplb::cuda {

struct GpuMemory {
  int32_t device = 0;  // the driver's number, which is the runtime's as well
  bool is_managed = false;
};

// The driver's cuPointerGetAttribute, with the types that a build without cuda.h has.
using PointerGetAttribute = int (*)(void* value, int attribute, uint64_t pointer);

// Nothing for the host's memory, pinned or not. The driver needs no context for it and makes none,
// which the runtime's cudaPointerGetAttributes does on the current device before CUDA 13. errors:
// Internal. threads: safe. cost: microseconds.
absl::StatusOr<std::optional<GpuMemory>> FindGpuMemory(PointerGetAttribute get, const void* memory);

// By the driver that is loaded, without a runtime. False where there is none, and for memory that
// it does not know. threads: safe. cost: microseconds.
bool IsGpuMemory(const void* memory);

// True if the loader finds a driver.
bool DriverIsInstalled();

}  // namespace eplb::cuda
