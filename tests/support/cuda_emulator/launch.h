// A launch of a translated kernel, and the runtime's template that takes a kernel.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "tests/support/cuda_emulator/machine.h"

namespace eplb::cuda_emulator {

// Runs, or adds to what the stream captures. An error is the runtime's, as of CUDA.
void Launch(const char* kernel, const LaunchShape& shape, std::function<void()> body);

// Dynamic shared memory that a kernel may have: the default, or its attribute.
inline size_t& MostSharedBytes(void (*kernel)()) {
  static auto* const bytes = new std::map<void (*)(), size_t>();
  return bytes->try_emplace(kernel, kSharedBytes).first->second;
}

// Translation of `kernel<<<grid, block, shared, stream>>>`, without the arguments.
template <class... Parameters>
class Launcher {
 public:
  Launcher(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape)
      : name_(name), kernel_(kernel), shape_(shape) {
    shape_.most_shared_bytes = MostSharedBytes(reinterpret_cast<void (*)()>(kernel));
  }

  void operator()(std::type_identity_t<Parameters>... arguments) const {
    Launch(name_, shape_, [kernel = kernel_, arguments...] { kernel(arguments...); });
  }

 private:
  const char* name_;
  void (*kernel_)(Parameters...);
  LaunchShape shape_;
};

}  // namespace eplb::cuda_emulator

// Kernels of a stream never overlap here, so the attributes change nothing.
template <class... Parameters>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               const std::type_identity_t<Parameters>&... arguments) {
  const eplb::cuda_emulator::LaunchShape shape(config->gridDim, config->blockDim,
                                               config->dynamicSmemBytes, config->stream);
  eplb::cuda_emulator::Launcher("kernel", kernel, shape)(arguments...);
  return cudaGetLastError();
}

template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel* /*kernel*/) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > ::eplb::cuda_emulator::kMostSharedBytes) {
    return cudaErrorInvalidValue;
  }
  ::eplb::cuda_emulator::MostSharedBytes(reinterpret_cast<void (*)()>(kernel)) =
      static_cast<size_t>(value);
  return cudaSuccess;
}
