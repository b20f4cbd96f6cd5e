// Loads kernels onto the current device before they are launched: for the .cu files.
#pragma once

#include "absl/status/status.h"
#include <cuda_runtime_api.h>

#include "cuda/runtime.h"

namespace eplb::cuda {

// To ask for a kernel's attributes loads it. errors: Internal from CUDA.
template <class... Kernel>
absl::Status LoadKernels(Kernel*... kernels) {
  cudaFuncAttributes attributes{};
  cudaError_t error = cudaSuccess;
  const auto load = [&](auto* kernel) {
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  };
  (load(kernels), ...);
  return ToStatus(error, "cudaFuncGetAttributes");
}

}  // namespace eplb::cuda
