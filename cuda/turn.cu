#include "base/status_macros.h"
#include "cuda/count.h"
#include "cuda/kernels/histogram_device.cuh"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"
#include "cuda/turn.h"

namespace eplb::cuda {
namespace {

// A block turns a chunk, and counts it in a histogram of its own, if one fits.
template <class ExpertId>
__global__ void __launch_bounds__(kMaxChoiceThreads)
    TurnKernel(TurnArgs args, ChoiceGrid grid, TokenDivider divider, bool fits) {
  extern __shared__ uint32_t histogram[];
  const CountArgs& choices = args.choices;
  const bool counts = Counts(args);
  if (counts && fits) ClearHistogram(choices, histogram);
  __syncthreads();
  const Chunk chunk = ChunkAt(choices, grid, blockIdx.x);
  for (uint32_t index = chunk.begin + threadIdx.x; index < chunk.end; index += blockDim.x) {
    TurnChoice<ExpertId>(args, divider, index, [&](int32_t bin) {
      if (counts) AddBin(choices, bin, histogram, fits);
    });
  }
  if (!counts || !fits) return;
  __syncthreads();
  MergeHistogram(choices, histogram);
}

template <class ExpertId>
void Launch(const TurnArgs& args, cudaStream_t stream) {
  const int32_t shared_bytes = HistogramBytes(args.choices.num_experts);
  const ChoiceGrid grid = GridOfChoices(args.choices);
  TurnKernel<ExpertId><<<grid.blocks, grid.threads, shared_bytes, stream>>>(
      args, grid, MakeTokenDivider(args.choices.top_k), shared_bytes > 0);
}

}  // namespace

absl::Status LaunchTurn(const TurnArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckTurnArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (args.choices.id_type == ExpertIdType::kInt64) {
    Launch<int64_t>(args, stream);
  } else {
    Launch<int32_t>(args, stream);
  }
  return ToStatus(cudaGetLastError(), "launch of the turn kernel");
}

absl::Status LoadTurnKernels() { return LoadKernels(&TurnKernel<int32_t>, &TurnKernel<int64_t>); }

}  // namespace eplb::cuda
