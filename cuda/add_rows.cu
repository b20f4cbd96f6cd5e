#include "base/status_macros.h"
#include "cuda/add_rows.h"
#include "cuda/copy.h"
#include "cuda/kernels/add_rows_body.h"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"

namespace eplb::cuda {
namespace {

// Blocks stride over the tiles.
template <class Element>
__global__ void AddRowsKernel(AddArgs args) {
  for (int64_t tile = blockIdx.x; tile < args.num_tiles; tile += gridDim.x) {
    const TiledRow row = args.rows[RowOfTile(args.rows, args.num_rows, tile)];
    AddTilePart<Element>(row.copy, tile - row.first_tile, threadIdx.x, blockDim.x);
  }
}

}  // namespace

absl::Status LaunchAddRows(const AddArgs& args, int32_t max_blocks, cudaStream_t stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int32_t num_multiprocessors, NumMultiprocessors());
  const CopyGrid grid = ChooseCopyGrid(args.num_tiles, num_multiprocessors, max_blocks);
  VisitElement(args.type, [&](auto element) {
    AddRowsKernel<decltype(element)><<<grid.blocks, grid.threads, 0, stream>>>(args);
  });
  return ToStatus(cudaGetLastError(), "launch of the row addition");
}

absl::Status LoadAddKernels() {
  return LoadKernels(&AddRowsKernel<Float32Element>, &AddRowsKernel<Float64Element>,
                     &AddRowsKernel<Bfloat16Element>, &AddRowsKernel<Float16Element>);
}

}  // namespace eplb::cuda
