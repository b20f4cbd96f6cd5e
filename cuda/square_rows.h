// Sums the squares of many rows at once, for the norm of a gradient.
#pragma once

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

// Sums on the CPU, in float64 and in the order of square_rows_body.h, which depends on a row's
// length alone; a version with another order gives other last bits. What is not a number has all
// bits but the sign. Destinations are not looked at. sums: [rows], set. errors: as CheckElements;
// InvalidArgument for another number of sums; nothing is summed then. threads: none.
absl::Status SquareRowsOnHost(std::span<const RowCopy> rows, ElementType type,
                              std::span<double> sums);

// Pointers are to device memory.
struct SquareArgs {
  const TiledRow* rows = nullptr;  // [num_rows]; the tiles are not looked at
  int32_t num_rows = 0;            // at most 2^24
  // [NumSquareScratch(num_rows)], scratch memory of this launch until its sums are there: a later
  // launch on the same stream may reuse it, one on another stream may not.
  double* parts = nullptr;
  double* sums = nullptr;  // [num_rows], set
  ElementType type = ElementType::kFloat32;
};
static_assert(std::is_trivially_copyable_v<SquareArgs>);

// The numbers of SquareArgs::parts: 512 bytes a row.
int64_t NumSquareScratch(int32_t num_rows);

inline constexpr int32_t kSquareBlocksPerMultiprocessor = 4;

// A block a part, as many as the multiprocessors hold; blocks stride over further parts. 0 when
// there is none.
int32_t ChooseSquareBlocks(int32_t num_rows, int32_t num_multiprocessors);

#ifdef EPLB_WITH_CUDA
// Sums on the current device, in order with `stream`, with the bits of SquareRowsOnHost;
// asynchronous, launches nothing for zero rows. errors: Internal from CUDA.
absl::Status LaunchSquareRows(const SquareArgs& args, cudaStream_t stream);

// See LoadCopyKernels.
absl::Status LoadSquareKernels();
#endif

}  // namespace eplb::cuda
