#include "base/status_macros.h"
#include "cuda/kernels/histogram_device.cuh"
#include "cuda/load_kernels.h"
#include "cuda/route.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

enum class Counting { kNone, kShared, kMemory };

// Blocks stride over the quads. With kShared each block counts in its own histogram first.
template <class ExpertId, Counting kCounting>
__global__ void RouteKernel(RouteArgs args) {
  extern __shared__ uint32_t histogram[];
  if constexpr (kCounting == Counting::kShared) {
    ClearHistogram(args.choices, histogram);
    __syncthreads();
  }
  const int64_t num_quads = NumQuads(args.choices);
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t quad = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; quad < num_quads;
       quad += stride) {
    const BinQuad quad_bins = RouteQuad<ExpertId>(args, quad);
    if constexpr (kCounting != Counting::kNone) {
      AddQuad(args.choices, quad_bins, kCounting == Counting::kShared ? histogram : nullptr);
    }
  }
  if constexpr (kCounting == Counting::kShared) {
    __syncthreads();
    MergeHistogram(args.choices, histogram);
  }
}

template <class ExpertId>
void Launch(const RouteArgs& args, const CountGrid& grid, cudaStream_t stream) {
  if (args.choices.counts == nullptr) {
    RouteKernel<ExpertId, Counting::kNone><<<grid.blocks, grid.threads, 0, stream>>>(args);
  } else if (grid.shared_bytes > 0) {
    RouteKernel<ExpertId, Counting::kShared>
        <<<grid.blocks, grid.threads, grid.shared_bytes, stream>>>(args);
  } else {
    RouteKernel<ExpertId, Counting::kMemory><<<grid.blocks, grid.threads, 0, stream>>>(args);
  }
}

}  // namespace

absl::Status LaunchRoute(const RouteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int32_t num_multiprocessors, NumMultiprocessors());
  const CountGrid grid = ChooseCountGrid(args.choices, num_multiprocessors);
  if (args.choices.id_type == ExpertIdType::kInt32) {
    Launch<int32_t>(args, grid, stream);
  } else {
    Launch<int64_t>(args, grid, stream);
  }
  return ToStatus(cudaGetLastError(), "launch of the route kernel");
}

absl::Status LoadRouteKernels() {
  return LoadKernels(
      &RouteKernel<int32_t, Counting::kNone>, &RouteKernel<int32_t, Counting::kShared>,
      &RouteKernel<int32_t, Counting::kMemory>, &RouteKernel<int64_t, Counting::kNone>,
      &RouteKernel<int64_t, Counting::kShared>, &RouteKernel<int64_t, Counting::kMemory>);
}

}  // namespace eplb::cuda
