// A launch of a translated kernel, and the runtime's templates that take kernels.
#ifndef EPLB_TESTS_SUPPORT_CUDA_EMULATOR_LAUNCH_H_
#define EPLB_TESTS_SUPPORT_CUDA_EMULATOR_LAUNCH_H_

#include <cstddef>
#include <functional>
#include <utility>

#include <cuda_runtime_api.h>

#include "tests/support/cuda_emulator/machine.h"

namespace eplb::cuda_emulator {

// Runs, or adds to what the stream captures. An error is the runtime's, as of CUDA.
void Launch(const char* kernel, const LaunchShape& shape, std::function<void()> body);

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
  return cudaSuccess;
}

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* /*kernel*/, cudaFuncAttribute /*attribute*/, int value) {
  return value >= 0 ? cudaSuccess : cudaErrorInvalidValue;
}

template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, Kernel* /*kernel*/,
                                                          int block_size, size_t shared_bytes) {
  constexpr int kThreads = 2048;  // of a multiprocessor
  const bool fits = block_size > 0 && shared_bytes <= eplb::cuda_emulator::kSharedBytes;
  *num_blocks = fits ? kThreads / block_size : 0;
  return fits ? cudaSuccess : cudaErrorInvalidValue;
}

template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  eplb::cuda_emulator::Launcher("kernel", kernel,
                                {config->gridDim, config->blockDim, config->dynamicSmemBytes,
                                 config->stream})(std::forward<Arguments>(arguments)...);
  return cudaGetLastError();
}

#endif  // EPLB_TESTS_SUPPORT_CUDA_EMULATOR_LAUNCH_H_
