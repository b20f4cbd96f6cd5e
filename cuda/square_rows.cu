#include "base/status_macros.h"
#include "cuda/kernels/square_rows_body.h"
#include "cuda/runtime.h"
#include "cuda/square_rows.h"

namespace eplb::cuda {
namespace {

// A thread a lane; blocks stride over the rows.
template <class Element>
__global__ void __launch_bounds__(kSquareLanes) SquareRowsKernel(SquareArgs args) {
  __shared__ double lanes[kSquareLanes];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t index = blockIdx.x; index < args.num_rows; index += gridDim.x) {
    const RowCopy row = args.rows[index].copy;
    const int64_t num_units = NumSquareUnits(row.num_bytes);
    double sum = 0;
#pragma unroll 4
    for (int64_t unit = thread; unit < num_units; unit += kSquareLanes) {
      sum = PlusUnitSquares<Element>(row, unit, sum);
    }
    lanes[thread] = sum;
    __syncthreads();
    for (int32_t distance = kSquareLanes / 2; distance > 0; distance /= 2) {
      if (thread < distance) AddLane(lanes, thread, distance);
      __syncthreads();
    }
    if (thread == 0) args.sums[index] = lanes[0];
    __syncthreads();  // the next row writes lanes
  }
}

}  // namespace

absl::Status LaunchSquareRows(const SquareArgs& args, cudaStream_t stream) {
  EPLB_RETURN_IF_ERROR(CheckSquareArgs(args));
  if (args.num_rows == 0) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const int32_t num_multiprocessors, NumMultiprocessors());
  const int32_t blocks = ChooseSquareBlocks(args.num_rows, num_multiprocessors);
  VisitElement(args.type, [&](auto element) {
    SquareRowsKernel<decltype(element)><<<blocks, kSquareLanes, 0, stream>>>(args);
  });
  return ToStatus(cudaGetLastError(), "launch of the squares");
}

absl::Status LoadSquareKernels() {
  for (const auto kernel :
       {&SquareRowsKernel<Float32Element>, &SquareRowsKernel<Float64Element>,
        &SquareRowsKernel<Bfloat16Element>, &SquareRowsKernel<Float16Element>}) {
    cudaFuncAttributes attributes{};
    EPLB_RETURN_IF_ERROR(
        ToStatus(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes"));
  }
  return absl::OkStatus();
}

}  // namespace eplb::cuda
