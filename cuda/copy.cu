#include "base/status_macros.h"
#include "cuda/copy.h"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kWarpThreads = 32;
constexpr int32_t kMaxWarps = 32;

using Cell = unsigned long long;  // CUDA's name for a uint64_t
static_assert(sizeof(Cell) == sizeof(uint64_t));

__device__ Cell WarpSum(Cell value) {
  for (int32_t distance = kWarpThreads / 2; distance > 0; distance /= 2) {
    value += __shfl_down_sync(0xffffffff, value, distance);
  }
  return value;
}

// The sum over the block, in thread 0. All threads of the block must call it.
__device__ Cell BlockSum(Cell value) {
  __shared__ Cell warp_sums[kMaxWarps];
  const int32_t lane = threadIdx.x % kWarpThreads;
  const int32_t warp = threadIdx.x / kWarpThreads;
  value = WarpSum(value);
  if (lane == 0) warp_sums[warp] = value;
  __syncthreads();
  const int32_t num_warps = blockDim.x / kWarpThreads;
  if (warp == 0) value = WarpSum(lane < num_warps ? warp_sums[lane] : 0);
  __syncthreads();  // the next call writes warp_sums
  return value;
}

// Blocks stride over the tiles; memory sees one atomic per tile.
template <bool kChecksum>
__global__ void CopyKernel(CopyArgs args) {
  for (int64_t tile = blockIdx.x; tile < args.num_tiles; tile += gridDim.x) {
    const int32_t index = RowOfTile(args.rows, args.num_rows, tile);
    const TiledRow row = args.rows[index];
    const Cell part =
        CopyTilePart<kChecksum>(row.copy, tile - row.first_tile, threadIdx.x, blockDim.x);
    if constexpr (kChecksum) {
      const Cell sum = BlockSum(part);
      if (threadIdx.x == 0) atomicAdd(reinterpret_cast<Cell*>(args.checksums + index), sum);
    }
  }
}

}  // namespace

absl::Status LaunchCopyRows(const CopyArgs& args, int32_t max_blocks, cudaStream_t stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int32_t num_multiprocessors, NumMultiprocessors());
  const CopyGrid grid = ChooseCopyGrid(args.num_tiles, num_multiprocessors, max_blocks);
  if (args.checksums == nullptr) {
    CopyKernel<false><<<grid.blocks, grid.threads, 0, stream>>>(args);
    return ToStatus(cudaGetLastError(), "launch of the copy kernel");
  }
  if (!args.checksums_are_zero) {
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaMemsetAsync(args.checksums, 0, sizeof(uint64_t) * args.num_rows, stream),
                 "cudaMemsetAsync"));
  }
  CopyKernel<true><<<grid.blocks, grid.threads, 0, stream>>>(args);
  return ToStatus(cudaGetLastError(), "launch of the copy kernel");
}

absl::Status LoadCopyKernels() { return LoadKernels(&CopyKernel<false>, &CopyKernel<true>); }

}  // namespace eplb::cuda
