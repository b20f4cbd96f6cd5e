#include "absl/strings/str_cat.h"

#include "cuda/count.h"
#include "cuda/status.h"

namespace eplb::cuda {
namespace {

__device__ void AddToCell(const CountArgs& args, int32_t bin, uint32_t amount) {
  // Two's complement: adding to the bits as unsigned adds to the int64 counter.
  atomicAdd(reinterpret_cast<unsigned long long*>(CountCell(args, bin)),
            static_cast<unsigned long long>(amount));
}

// Blocks stride over the choices. With kShared each block counts in its own histogram first, so
// that memory sees one atomic per block and expert in use instead of one per choice.
template <class ExpertId, bool kShared>
__global__ void CountKernel(CountArgs args) {
  extern __shared__ uint32_t histogram[];  // [num_experts + 1], the last for ids out of range
  if constexpr (kShared) {
    for (int32_t bin = threadIdx.x; bin <= args.num_experts; bin += blockDim.x) histogram[bin] = 0;
    __syncthreads();
  }
  const int64_t num_choices = args.num_tokens * args.top_k;
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t index = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; index < num_choices;
       index += stride) {
    const int32_t bin = CountBin<ExpertId>(args, index);
    if (bin == kNoBin) continue;
    if constexpr (kShared) {
      atomicAdd(&histogram[bin], 1U);
    } else {
      AddToCell(args, bin, 1);
    }
  }
  if constexpr (kShared) {
    __syncthreads();
    for (int32_t bin = threadIdx.x; bin <= args.num_experts; bin += blockDim.x) {
      if (histogram[bin] != 0) AddToCell(args, bin, histogram[bin]);
    }
  }
}

template <class ExpertId>
void Launch(const CountArgs& args, const CountGrid& grid, cudaStream_t stream) {
  if (grid.shared_bytes > 0) {
    CountKernel<ExpertId, true><<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(args);
  } else {
    CountKernel<ExpertId, false><<<grid.blocks, grid.threads, 0, stream>>>(args);
  }
}

}  // namespace

absl::Status LaunchCount(const CountArgs& args, cudaStream_t stream) {
  if (absl::Status status = CheckCountArgs(args); !status.ok()) return status;
  if (args.num_tokens == 0) return absl::OkStatus();
  int device = 0;
  int num_multiprocessors = 0;
  if (absl::Status status = ToStatus(cudaGetDevice(&device), "cudaGetDevice"); !status.ok()) {
    return status;
  }
  if (absl::Status status = ToStatus(
          cudaDeviceGetAttribute(&num_multiprocessors, cudaDevAttrMultiProcessorCount, device),
          "cudaDeviceGetAttribute");
      !status.ok()) {
    return status;
  }
  const CountGrid grid =
      ChooseCountGrid(args.num_tokens * args.top_k, args.num_experts, num_multiprocessors);
  if (args.id_type == ExpertIdType::kInt32) {
    Launch<int32_t>(args, grid, stream);
  } else {
    Launch<int64_t>(args, grid, stream);
  }
  return ToStatus(cudaGetLastError(), "launch of the count kernel");
}

}  // namespace eplb::cuda
