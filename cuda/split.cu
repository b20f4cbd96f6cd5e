#include "base/status_macros.h"
#include "cuda/kernels/lane_team.h"
#include "cuda/kernels/turn_device.cuh"
#include "cuda/kernels/warp_device.cuh"
#include "cuda/launch_in_turn.h"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"
#include "cuda/split.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kThreads = 2 * kSumThreads;

struct WholeBlock {
  int32_t thread;
  static constexpr int32_t num_threads = kThreads;
  __device__ static void Sync() { __syncthreads(); }
};

// A block splits one layer. Half of its threads copy the tables while the others add up the counts;
// then one warp splits them.
template <int kWords>
__global__ void __launch_bounds__(kThreads, 1) SplitKernel(SplitArgs args) {
  extern __shared__ TableUnit split_memory[];
  Carver carver(reinterpret_cast<std::byte*>(split_memory));
  const SplitMemory<kWords> memory = CarveMemory<kWords>(args, carver, /*in_registers=*/true);
  const auto index = static_cast<int32_t>(blockIdx.x);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  AwaitTurn();
  if (thread < kSumThreads) {
    SumSources(args, index, memory, thread, kSumThreads);
  } else {
    const std::byte* const tables =
        args.tables + (args.first_layer + index) * memory.num_table_bytes;
    constexpr int64_t kUnit = sizeof(TableUnit);
    for (int64_t at = kUnit * (thread - kSumThreads); at < memory.num_table_bytes;
         at += kUnit * (kThreads - kSumThreads)) {
      StoreAligned(memory.table_bytes + at, LoadAligned<TableUnit>(tables + at));
    }
  }
  __syncthreads();
  // The number of the warp is lane 0's, so that the compiler knows that all lanes take the branch.
  if (Warp::Shuffle(thread / kLanes, 0) == 0) {
    SolveLayer(args, index, memory, NumSourceGroups(args, kSumThreads), LaneTeam<Warp>(Warp()));
  }
  __syncthreads();
  OfferTurn();
  WriteLayer(args, index, memory, WholeBlock{thread});
}

template <int kWords>
absl::Status Launch(const SplitArgs& args, cudaStream_t stream) {
  EPLB_ASSIGN_OR_RETURN(
      const cudaLaunchConfig_t shape,
      ShapeInTurn<&SplitKernel<kWords>>(args.num_layers, kThreads, SplitSharedBytes(args), stream));
  return ToStatus(cudaLaunchKernelEx(&shape, SplitKernel<kWords>, args),
                  "launch of the split kernel");
}

}  // namespace

absl::Status LaunchSplit(const SplitArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSplitArgs(args));
  if (args.num_layers == 0) return absl::OkStatus();
  return args.shape.num_gpus <= GpuSet<1>::kMaxGpus ? Launch<1>(args, stream)
                                                    : Launch<2>(args, stream);
}

absl::Status LoadSplitKernels() {
  EPLB_RETURN_IF_ERROR(LoadKernels(&SplitKernel<1>, &SplitKernel<2>));
  for (void (*const kernel)(SplitArgs) : {&SplitKernel<1>, &SplitKernel<2>}) {
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      kMaxSplitSharedBytes),
                 "cudaFuncSetAttribute"));
  }
  return absl::OkStatus();
}

}  // namespace eplb::cuda
