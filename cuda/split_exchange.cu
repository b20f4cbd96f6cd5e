#include "base/status_macros.h"
#include "cuda/kernels/turn_device.cuh"
#include "cuda/launch_in_turn.h"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"
#include "cuda/split_exchange.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kExchangeThreads = 1024;

struct ExchangeBlock {
  bool* shared;

  __device__ bool leader() const { return threadIdx.x == 0; }
  template <class Work>
  __device__ void ForEach(int32_t count, const Work& work) const {
    for (int32_t i = threadIdx.x; i < count; i += blockDim.x) work(i);
    __syncthreads();
  }
  __device__ bool Share(bool value) const {
    if (leader()) *shared = value;
    __syncthreads();
    OfferTurn();  // not before the wait for the answer
    return *shared;
  }
  __device__ static int64_t Raise(int64_t* word) {
    return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(word), 1ULL)) + 1;
  }
};

__global__ void __launch_bounds__(kExchangeThreads) SplitExchangeKernel(SplitExchangeArgs args) {
  __shared__ bool in_time;
  AwaitTurn();
  ExchangeSplit(args, ExchangeBlock{&in_time});
}

__global__ void __launch_bounds__(kExchangeThreads) SplitNoteKernel(SplitNoteArgs args) {
  __shared__ bool is_split;
  NoteSplit(args, ExchangeBlock{&is_split});
}

}  // namespace

absl::Status LaunchSplitExchange(const SplitExchangeArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSplitExchangeArgs(args));
  EPLB_ASSIGN_OR_RETURN(const cudaLaunchConfig_t shape,
                        ShapeInTurn<&SplitExchangeKernel>(1, kExchangeThreads, 0, stream));
  return ToStatus(cudaLaunchKernelEx(&shape, SplitExchangeKernel, args),
                  "launch of the kernel that exchanges a split");
}

absl::Status LaunchSplitNote(const SplitNoteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSplitNoteArgs(args));
  SplitNoteKernel<<<1, kExchangeThreads, 0, stream>>>(args);
  return ToStatus(cudaGetLastError(), "launch of the kernel that notes a split");
}

absl::Status LoadSplitExchangeKernels() {
  return LoadKernels(&SplitExchangeKernel, &SplitNoteKernel);
}

}  // namespace eplb::cuda
