// Interface of the stand-in for CUDA for stand-ins of other libraries that are loaded later and put
// kernels of their own onto its streams. They look up fakeCudaForLibraries by its name.
#pragma once

#include <cstddef>
#include <functional>

#include <cuda_runtime_api.h>

namespace eplb::fake_cuda {

struct ForLibraries {
  int (*current_device)();
  int (*device_of_stream)(cudaStream_t stream);  // -1: there is no such stream
  // Address at which the stand-in reads and writes `size` bytes of memory of `device`; null for
  // other memory.
  std::byte* (*view)(const void* address, size_t size, int device);
  // See EnqueueExternal in fake_cuda.h.
  void (*enqueue)(cudaStream_t stream, std::function<bool()> has_ended);
  // Called under the lock of the stand-in for device memory that goes.
  void (*on_free)(std::function<void(const void* address, size_t size)> tell);
  cudaError_t (*allocate)(void** address, size_t size);
  cudaError_t (*free)(void* address);
};

}  // namespace eplb::fake_cuda

extern "C" const eplb::fake_cuda::ForLibraries* fakeCudaForLibraries();
