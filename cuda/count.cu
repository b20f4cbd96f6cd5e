#include "base/status_macros.h"
#include "cuda/count.h"
#include "cuda/kernels/histogram_device.cuh"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

// Blocks stride over the quads. With kShared each block counts in its own histogram first.
template <class ExpertId, bool kShared>
__global__ void CountKernel(CountArgs args) {
  extern __shared__ uint32_t histogram[];
  if constexpr (kShared) {
    ClearHistogram(args, histogram);
    __syncthreads();
  }
  const int64_t num_quads = NumQuads(args);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t quad = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; quad < num_quads;
       quad += stride) {
    AddQuad(args, BinsOfQuad<ExpertId>(args, quad), kShared ? histogram : nullptr);
  }
  if constexpr (kShared) {
    __syncthreads();
    MergeHistogram(args, histogram);
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
  EPLB_RETURN_IF_ERROR(CheckCountArgs(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int32_t num_multiprocessors, NumMultiprocessors());
  const CountGrid grid = ChooseCountGrid(args, num_multiprocessors);
  if (args.id_type == ExpertIdType::kInt32) {
    Launch<int32_t>(args, grid, stream);
  } else {
    Launch<int64_t>(args, grid, stream);
  }
  return ToStatus(cudaGetLastError(), "launch of the count kernel");
}

absl::Status LoadCountKernels() {
  return LoadKernels(&CountKernel<int32_t, false>, &CountKernel<int32_t, true>,
                     &CountKernel<int64_t, false>, &CountKernel<int64_t, true>);
}

}  // namespace eplb::cuda
