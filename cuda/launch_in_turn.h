// Programmatic dependent launch: for the .cu files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include <cuda_runtime_api.h>

#include "base/status_macros.h"
#include "cuda/runtime.h"

namespace eplb::cuda {

// Returns the shape of a launch of kKernel that overlaps the end of the stream's kernel before it,
// on GPUs from Hopper on. The kernel calls AwaitTurn, so that the order of the stream holds. That
// does nothing in code for older GPUs, which newer ones run as well if there is none for them, so
// the shape follows from the code. errors: Internal from CUDA. threads: safe.
template <auto kKernel>
absl::StatusOr<cudaLaunchConfig_t> ShapeInTurn(int32_t blocks, int32_t threads,
                                               int64_t shared_bytes, cudaStream_t stream) {
  constexpr int32_t kHopper = 90;
  static KeptFigures versions{};
  static cudaLaunchAttribute overlaps = [] {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    return attribute;
  }();
  EPLB_ASSIGN_OR_RETURN(
      const int32_t version,
      FigureOfDevice(versions, "cudaFuncGetAttributes", [](int32_t* figure, int /*device*/) {
        cudaFuncAttributes attributes{};
        const cudaError_t error = cudaFuncGetAttributes(&attributes, kKernel);
        *figure = attributes.ptxVersion;
        return error;
      }));
  cudaLaunchConfig_t shape{};
  shape.gridDim = dim3(static_cast<uint32_t>(blocks));
  shape.blockDim = dim3(static_cast<uint32_t>(threads));
  shape.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  shape.stream = stream;
  shape.attrs = &overlaps;
  shape.numAttrs = version >= kHopper ? 1 : 0;
  return shape;
}

}  // namespace eplb::cuda
