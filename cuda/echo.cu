#include "base/status_macros.h"
#include "cuda/echo.h"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kWarpLanes = 32;

// The lanes of a block of one warp.
struct EchoWarp {
  static constexpr bool kIsOne = false;
  static constexpr uint32_t kAllLanes = 0xffffffff;

  template <class Work>
  __device__ void ForEach(int32_t count, const Work& work) const {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += kWarpLanes) work(i);
    __syncwarp();
  }
  __device__ int64_t Sum(int64_t value) const {
    for (int32_t distance = kWarpLanes / 2; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(kAllLanes, value, distance);
    }
    return value;
  }
  __device__ int64_t Max(int64_t value) const {
    for (int32_t distance = kWarpLanes / 2; distance > 0; distance /= 2) {
      const int64_t other = __shfl_xor_sync(kAllLanes, value, distance);
      if (other > value) value = other;
    }
    return value;
  }
};

// A block a layer. The matching of overload and room is one lane's work in each domain.
__global__ void __launch_bounds__(kWarpLanes) EchoKernel(EchoArgs args) {
  extern __shared__ int64_t echo_memory[];
  const auto layer = static_cast<int32_t>(blockIdx.x);
  EchoLayerWork<EchoWarp>(args, layer, echo_memory, EchoWarp()).Run();
}

}  // namespace

absl::Status LaunchEcho(const EchoArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckEchoArgs(args));
  if (args.num_layers == 0) return absl::OkStatus();
  EchoKernel<<<args.num_layers, kWarpLanes, static_cast<size_t>(EchoLayerBytes(args)), stream>>>(
      args);
  return ToStatus(cudaGetLastError(), "launch of the echo kernel");
}

absl::Status LoadEchoKernels() { return LoadKernels(&EchoKernel); }

}  // namespace eplb::cuda
