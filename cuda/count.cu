#include "base/status_macros.h"
#include "cuda/count.h"
#include "cuda/kernels/histogram_device.cuh"
#include "cuda/kernels/turn_device.cuh"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

// A block counts a chunk in a histogram of its own, if it fits, and adds that to memory.
template <class ExpertId, bool kFits>
__global__ void __launch_bounds__(kMaxChoiceThreads)
    CountKernel(CountArgs args, ChoiceGrid grid, TokenDivider divider) {
  extern __shared__ uint32_t histogram[];
  if (kFits) ClearHistogram(args, histogram);
  __syncthreads();
  const Chunk chunk = ChunkAt(args, grid, blockIdx.x);
  const uint32_t end_of_quads = EndOfQuads<ExpertId>(chunk, args.expert_ids);
  for (uint32_t first = chunk.begin + kQuad * threadIdx.x; first < end_of_quads;
       first += kQuad * blockDim.x) {
    const BinQuad quad = BinsOfQuad(args, divider, first, LoadQuad<ExpertId>(args, first));
    for (const int32_t bin : quad.bins) AddBin(args, bin, histogram, kFits);
  }
  for (uint32_t index = end_of_quads + threadIdx.x; index < chunk.end; index += blockDim.x) {
    AddBin(args, BinOfChoice<ExpertId>(args, divider, index), histogram, kFits);
  }
  if (!kFits) return;
  OfferTurn();
  __syncthreads();
  MergeHistogram(args, histogram);
}

template <class ExpertId>
absl::Status Launch(const CountArgs& args, cudaStream_t stream) {
  const int32_t shared_bytes = HistogramBytes(args.num_experts);
  const ChoiceGrid grid = GridOfChoices(args);
  const TokenDivider divider = MakeTokenDivider(args.top_k);
  if (shared_bytes > 0) {
    CountKernel<ExpertId, true>
        <<<grid.blocks, grid.threads, shared_bytes, stream>>>(args, grid, divider);
  } else {
    CountKernel<ExpertId, false><<<grid.blocks, grid.threads, 0, stream>>>(args, grid, divider);
  }
  return ToStatus(cudaGetLastError(), "launch of the count kernel");
}

}  // namespace

absl::Status LaunchCount(const CountArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckCountArgs(args));
  if (args.num_tokens == 0) return absl::OkStatus();
  return args.id_type == ExpertIdType::kInt32 ? Launch<int32_t>(args, stream)
                                              : Launch<int64_t>(args, stream);
}

absl::Status LoadCountKernels() {
  return LoadKernels(&CountKernel<int32_t, true>, &CountKernel<int32_t, false>,
                     &CountKernel<int64_t, true>, &CountKernel<int64_t, false>);
}

}  // namespace eplb::cuda
