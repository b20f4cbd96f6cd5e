// Adds many rows to others at once: the gradients of an expert's replicas.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"

#include "cuda/kernels/copy_body.h"
#include "cuda/kernels/element_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// errors: as CheckRowCopies; InvalidArgument, naming row and number, for bytes that are no whole
// elements. `what` names the work. No pointer is followed. cost: O(rows).
absl::Status CheckElements(std::string_view what, std::span<const RowCopy> rows, ElementType type);

// errors: as CheckElements; InvalidArgument for a row with bytes and no destination.
absl::Status CheckRowAdditions(std::span<const RowCopy> rows, ElementType type);

// Adds on the CPU, one row after the other: destination = destination + source, element by element,
// in the type itself, rounded once, to nearest, ties to even. What is not a number becomes one with
// all bits but the sign, whatever it was. errors: as CheckRowAdditions; nothing is added then.
// threads: none.
absl::Status AddRowsOnHost(std::span<const RowCopy> rows, ElementType type);

// Pointers are to device memory.
struct AddArgs {
  const TiledRow* rows = nullptr;  // [num_rows], table written by TileRows
  int32_t num_rows = 0;
  int64_t num_tiles = 0;  // number returned by TileRows
  ElementType type = ElementType::kFloat32;
};
static_assert(std::is_trivially_copyable_v<AddArgs>);

#ifdef EPLB_WITH_CUDA
// Adds on the current device, in order with `stream`, with the bits of AddRowsOnHost; asynchronous,
// launches nothing for zero rows. 16 bytes an access where source and destination are equally far
// from 16-byte alignment, single elements or two halfwords else. Grid as ChooseCopyGrid. REQUIRES:
// CheckRowAdditions; no row's destination shares a byte with another row. errors: Internal from
// CUDA.
absl::Status LaunchAddRows(const AddArgs& args, int32_t max_blocks, cudaStream_t stream);

// See LoadCopyKernels.
absl::Status LoadAddKernels();
#endif

}  // namespace eplb::cuda
