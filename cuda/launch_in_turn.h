// Launches kernels that begin while the kernel before them on the stream ends: for the .cu files.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "cuda/runtime.h"

namespace eplb::cuda {

inline bool launches_overlap = true;  // candidate of a bench

struct KernelShape {
  int32_t blocks = 0;
  int32_t threads = 0;
  int32_t shared_bytes = 0;
};

// The kernel calls TakeTurn (cuda/kernels/turn_device.cuh), so the order of the stream holds: the
// launch alone, about 1 us, overlaps. Before Hopper GPUs nothing overlaps. errors: Internal from
// CUDA, naming the kernel.
template <class... Parameters>
absl::Status LaunchInTurn(std::string_view name, void (*kernel)(Parameters...),
                          const KernelShape& shape, cudaStream_t stream,
                          std::type_identity_t<Parameters>... arguments) {
  constexpr int32_t kHopper = 9;
  EPLB_ASSIGN_OR_RETURN(const int32_t capability, ComputeCapabilityMajor());
  cudaLaunchAttribute overlaps{};
  overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlaps.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{dim3(static_cast<uint32_t>(shape.blocks)),
                                  dim3(static_cast<uint32_t>(shape.threads)),
                                  static_cast<size_t>(shape.shared_bytes),
                                  stream,
                                  &overlaps,
                                  launches_overlap && capability >= kHopper ? 1U : 0U};
  return ToStatus(cudaLaunchKernelEx(&config, kernel, arguments...), name);
}

}  // namespace eplb::cuda
