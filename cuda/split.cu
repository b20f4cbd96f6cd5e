#include "base/status_macros.h"
#include "cuda/kernels/lane_team.h"
#include "cuda/kernels/warp_device.cuh"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"
#include "cuda/split.h"

namespace eplb::cuda {
namespace {

// A block is one warp and splits one layer, in shared memory where that is large enough.
template <int kWords>
__global__ void SplitKernel(SplitArgs args) {
  extern __shared__ int64_t split_memory[];
  const auto index = static_cast<int32_t>(blockIdx.x);
  std::byte* const memory = args.scratch == nullptr
                                ? reinterpret_cast<std::byte*>(split_memory)
                                : args.scratch + index * ScratchBytesOfLayer(args.tables, kWords);
  SplitOneLayer<kWords>(args, index, memory, LaneTeam<Warp>(Warp()));
}

template <int kWords>
void Launch(SplitArgs args, bool shared, cudaStream_t stream) {
  if (shared) args.scratch = nullptr;
  const int64_t bytes = shared ? ScratchBytesOfLayer(args.tables, kWords) : 0;
  SplitKernel<kWords><<<args.num_layers, kLanes, static_cast<size_t>(bytes), stream>>>(args);
}

}  // namespace

absl::Status LaunchSplit(const SplitArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSplitArgs(args));
  if (args.num_layers == 0) return absl::OkStatus();
  const bool shared = SplitScratchBytes(args.tables, args.num_layers) == 0;
  if (!shared && args.scratch == nullptr) {
    return absl::InvalidArgumentError("split needs scratch memory, it is null");
  }
  if (NumSplitWords(args.tables.num_gpus) == 1) {
    Launch<1>(args, shared, stream);
  } else {
    Launch<2>(args, shared, stream);
  }
  return ToStatus(cudaGetLastError(), "launch of the split kernel");
}

absl::Status LoadSplitKernels() { return LoadKernels(&SplitKernel<1>, &SplitKernel<2>); }

}  // namespace eplb::cuda
