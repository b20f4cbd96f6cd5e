#include "base/status_macros.h"
#include "cuda/kernels/warp_device.cuh"
#include "cuda/load_kernels.h"
#include "cuda/quota_route.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kQuotaThreads = 128;
constexpr int32_t kQuotaWarps = kQuotaThreads / Warp::kWidth;

__device__ int64_t ChunkOfWarp() {
  return int64_t{blockIdx.x} * kQuotaWarps + threadIdx.x / Warp::kWidth;
}

template <class ExpertId>
__global__ void CountChunksKernel(QuotaRouteArgs args) {
  const int64_t chunk = ChunkOfWarp();
  if (chunk < NumChunks(args.choices)) CountChunk<ExpertId>(args, chunk, Warp());
}

__global__ void AddUpChunksKernel(QuotaRouteArgs args) {
  const auto expert = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (expert < args.choices.num_experts) AddUpChunks(args, expert);
}

template <class ExpertId>
__global__ void RouteChunksKernel(QuotaRouteArgs args) {
  const int64_t chunk = ChunkOfWarp();
  if (chunk < NumChunks(args.choices)) RouteChunk<ExpertId>(args, chunk, Warp());
}

template <class ExpertId>
void LaunchPasses(const QuotaRouteArgs& args, cudaStream_t stream) {
  const auto chunk_blocks =
      static_cast<uint32_t>((NumChunks(args.choices) + kQuotaWarps - 1) / kQuotaWarps);
  const auto expert_blocks =
      static_cast<uint32_t>((args.choices.num_experts + kQuotaThreads - 1) / kQuotaThreads);
  CountChunksKernel<ExpertId><<<chunk_blocks, kQuotaThreads, 0, stream>>>(args);
  AddUpChunksKernel<<<expert_blocks, kQuotaThreads, 0, stream>>>(args);
  RouteChunksKernel<ExpertId><<<chunk_blocks, kQuotaThreads, 0, stream>>>(args);
}

}  // namespace

absl::Status LaunchQuotaRoute(const QuotaRouteArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckQuotaRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (args.choices.id_type == ExpertIdType::kInt32) {
    LaunchPasses<int32_t>(args, stream);
  } else {
    LaunchPasses<int64_t>(args, stream);
  }
  return ToStatus(cudaGetLastError(), "launch of the kernels that route by quota");
}

absl::Status LoadQuotaRouteKernels() {
  return LoadKernels(&CountChunksKernel<int32_t>, &CountChunksKernel<int64_t>, &AddUpChunksKernel,
                     &RouteChunksKernel<int32_t>, &RouteChunksKernel<int64_t>);
}

}  // namespace eplb::cuda
