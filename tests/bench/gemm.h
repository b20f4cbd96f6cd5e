// A matrix product as a stand-in for a training step's work on the GPU; not a fast one.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include <cuda_runtime_api.h>

namespace eplb::bench {

// c = a * b, all [size, size] floats of the current device, row-major; in order with `stream`.
// errors: InvalidArgument unless size is a positive multiple of 32; Internal from CUDA.
absl::Status LaunchGemm(const float* a, const float* b, float* c, int32_t size,
                        cudaStream_t stream);

}  // namespace eplb::bench
