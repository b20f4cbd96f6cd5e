// Copies many rows at once and sums the checksum of each as it is read: commits, packing of small
// tensors, duplicates of an expert on one GPU, and checksums alone.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "absl/status/status.h"

#include "cuda/kernels/copy_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// errors: InvalidArgument, naming row and number: num_bytes < 0, a null source of a row with bytes.
// No pointer is followed. cost: O(rows).
absl::Status CheckRowCopies(std::span<const RowCopy> rows);

// Copies on the CPU, one row after the other. checksums: [rows], set to ChecksumOnHost of each
// source; or empty, none is summed. errors: as CheckRowCopies; InvalidArgument for another number
// of checksums; nothing is copied then. threads: none; the memory is the caller's.
absl::Status CopyRowsOnHost(std::span<const RowCopy> rows, std::span<uint64_t> checksums);

// Writes the table that the kernel reads, which the caller takes to the device. table: [rows].
// Returns the number of tiles. REQUIRES: CheckRowCopies; tables of equal size. cost: O(rows).
int64_t TileRows(std::span<const RowCopy> rows, std::span<TiledRow> table);

// Pointers are to device memory.
struct CopyArgs {
  const TiledRow* rows = nullptr;  // [num_rows], table written by TileRows
  int32_t num_rows = 0;
  int64_t num_tiles = 0;            // number returned by TileRows
  uint64_t* checksums = nullptr;    // [num_rows], set; null: none is summed
  bool checksums_are_zero = false;  // already, e.g. by the copy that brought the table
};
static_assert(std::is_trivially_copyable_v<CopyArgs>);

struct CopyGrid {
  int32_t blocks = 0;  // 0 when there is nothing to copy
  int32_t threads = 0;
};

// A block a tile, at most 4 a multiprocessor, where the memory has more loads under way than it can
// serve; blocks stride over further tiles. max_blocks: a lower cap, which leaves multiprocessors to
// others; 0: none.
CopyGrid ChooseCopyGrid(int64_t num_tiles, int32_t num_multiprocessors, int32_t max_blocks);

#ifdef EPLB_WITH_CUDA
// Copies on the current device, in order with `stream`; asynchronous, safe under graph capture,
// launches nothing for zero rows. Rows without a destination are only summed: the checksum kernel
// is this one. Checksums that are said to be zero are added to: a replayed graph would add to those
// of the replay before. 16 bytes an access where source and destination are equally far from
// 16-byte alignment, 8 or 4 where both are aligned to these, single bytes else. max_blocks: as
// ChooseCopyGrid. errors: Internal from CUDA.
absl::Status LaunchCopyRows(const CopyArgs& args, int32_t max_blocks, cudaStream_t stream);

// Loads the kernels onto the current device. CUDA does so at the first launch otherwise, which may
// then wait for all that the device runs: also for a kernel that waits for another rank. errors:
// Internal from CUDA.
absl::Status LoadCopyKernels();
#endif

}  // namespace eplb::cuda
