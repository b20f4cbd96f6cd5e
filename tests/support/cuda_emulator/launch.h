// A launch of a translated kernel, and the runtime's template that takes a kernel.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <unordered_map>

#include <cuda_runtime_api.h>

#include "tests/support/cuda_emulator/machine.h"

namespace eplb::cuda_emulator {

// Runs, or adds to what the stream captures. An error is the runtime's, as of CUDA.
void Launch(const std::string& kernel, const LaunchShape& shape, std::function<void()> body);

// The same with attributes, of which programmatic stream serialization alone is known. text: the
// kernel's name, with arguments behind a comma.
cudaError_t LaunchWith(const cudaLaunchConfig_t& config, const char* text, size_t most_shared_bytes,
                       std::function<void()> body);
// Returns the limit of a kernel's dynamic shared memory.
inline size_t& MostSharedBytes(const void* kernel) {
  static std::unordered_map<const void*, size_t> limits;
  return limits.try_emplace(kernel, kSharedBytes).first->second;
}
template <class... Parameters>
cudaError_t LaunchEx(const char* text, const cudaLaunchConfig_t* config,
                     void (*kernel)(Parameters...), std::type_identity_t<Parameters>... arguments) {
  return LaunchWith(*config, text, MostSharedBytes(reinterpret_cast<const void*>(kernel)),
                    [=] { kernel(arguments...); });
}

// Translation of `kernel<<<grid, block, shared, stream>>>`, without the arguments.
template <class... Parameters>
class Launcher {
 public:
  Launcher(const char* name, void (*kernel)(Parameters...), const LaunchShape& shape)
      : name_(name), kernel_(kernel), shape_(shape) {}

  void operator()(std::type_identity_t<Parameters>... arguments) const {
    Launch(name_, shape_, [kernel = kernel_, arguments...] { kernel(arguments...); });
  }

 private:
  const char* name_;
  void (*kernel_)(Parameters...);
  LaunchShape shape_;
};

}  // namespace eplb::cuda_emulator

template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel* /*kernel*/) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->ptxVersion = 90;
  return cudaSuccess;
}

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  namespace emulator = ::eplb::cuda_emulator;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > emulator::kMostSharedBytes) {
    return cudaErrorInvalidValue;
  }
  emulator::MostSharedBytes(reinterpret_cast<const void*>(kernel)) = static_cast<size_t>(value);
  return cudaSuccess;
}
