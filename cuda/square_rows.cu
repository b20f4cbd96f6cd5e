#include "base/status_macros.h"
#include "cuda/kernels/square_rows_body.h"
#include "cuda/load_kernels.h"
#include "cuda/runtime.h"
#include "cuda/square_rows.h"

namespace eplb::cuda {
namespace {

// A thread a lane; blocks stride over the parts. The first parts of all rows come first: short rows
// have no others.
template <class Element>
__global__ void __launch_bounds__(kSquareLanes, kSquareBlocksPerMultiprocessor)
    SquarePartsKernel(SquareArgs args) {
  __shared__ double lanes[kSquareLanes];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t num_indices = args.num_rows * kMaxSquareParts;
  for (int32_t index = blockIdx.x; index < num_indices; index += gridDim.x) {
    const int32_t part = index / args.num_rows;
    const RowCopy row = args.rows[index % args.num_rows].copy;
    if (part >= NumSquareParts(row.num_bytes)) continue;
    lanes[thread] = SquaresOfLane<Element>(row, part, thread);
    __syncthreads();
    for (int32_t distance = kSquareLanes / 2; distance > 0; distance /= 2) {
      if (thread < distance) AddLane(lanes, thread, distance);
      __syncthreads();
    }
    // No barrier: until all have passed the next one, lane 0 is written by this thread alone.
    if (thread == 0) args.parts[index] = lanes[0];
  }
}

// A thread a row.
__global__ void SumPartsKernel(SquareArgs args) {
  const auto row = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= args.num_rows) return;
  const int32_t num_parts = NumSquareParts(args.rows[row].copy.num_bytes);
  args.sums[row] = SumOfParts(args.parts + row, num_parts, args.num_rows);
}

}  // namespace

absl::Status LaunchSquareRows(const SquareArgs& args, cudaStream_t stream) {
  if (args.num_rows == 0) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int32_t num_multiprocessors, NumMultiprocessors());
  const int32_t blocks = ChooseSquareBlocks(args.num_rows, num_multiprocessors);
  VisitElement(args.type, [&](auto element) {
    SquarePartsKernel<decltype(element)><<<blocks, kSquareLanes, 0, stream>>>(args);
  });
  EPLB_RETURN_IF_ERROR(ToStatus(cudaGetLastError(), "launch of the squares"));
  const int32_t row_blocks = (args.num_rows + kSquareLanes - 1) / kSquareLanes;
  SumPartsKernel<<<row_blocks, kSquareLanes, 0, stream>>>(args);
  return ToStatus(cudaGetLastError(), "launch of the sums of squares");
}

absl::Status LoadSquareKernels() {
  return LoadKernels(&SquarePartsKernel<Float32Element>, &SquarePartsKernel<Float64Element>,
                     &SquarePartsKernel<Bfloat16Element>, &SquarePartsKernel<Float16Element>,
                     &SumPartsKernel);
}

}  // namespace eplb::cuda
