// Sums the squares of many rows at once, for the norm of a gradient.
#ifndef EPLB_CUDA_SQUARE_ROWS_H_
#define EPLB_CUDA_SQUARE_ROWS_H_

#include <cstdint>
#include <span>
#include <type_traits>

#include "absl/status/status.h"

#include "cuda/kernels/copy_body.h"
#include "cuda/kernels/element_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// Sums on the CPU, in float64; destinations are not looked at. sums: [rows], set. errors: as
// CheckElements; InvalidArgument for another number of sums; nothing is summed then. threads: none.
absl::Status SquareRowsOnHost(std::span<const RowCopy> rows, ElementType type,
                              std::span<double> sums);

// Pointers are to device memory.
struct SquareArgs {
  const TiledRow* rows = nullptr;  // [num_rows]; the tiles are not looked at
  int32_t num_rows = 0;
  double* sums = nullptr;  // [num_rows], set
  ElementType type = ElementType::kFloat32;
};
static_assert(std::is_trivially_copyable_v<SquareArgs>);

// errors: InvalidArgument, naming the number: a negative one, or null where there are rows. No
// pointer is followed.
absl::Status CheckSquareArgs(const SquareArgs& args);

// A block a row, as many as the multiprocessors hold; blocks stride over further rows. 0 when there
// is none. A norm is of all layers: there are more rows than multiprocessors.
int32_t ChooseSquareBlocks(int32_t num_rows, int32_t num_multiprocessors);

#ifdef EPLB_WITH_CUDA
// Sums on the current device, in order with `stream`, with the bits of SquareRowsOnHost;
// asynchronous, launches nothing for zero rows. errors: as CheckSquareArgs; Internal from CUDA.
absl::Status LaunchSquareRows(const SquareArgs& args, cudaStream_t stream);

// As LoadCopyKernels.
absl::Status LoadSquareKernels();
#endif

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_SQUARE_ROWS_H_
