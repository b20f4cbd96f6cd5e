// The body of the batched row copy: what one thread copies of one tile of one row, and what that
// adds to the row's checksum. No barrier, no atomic: the caller adds.
#ifndef EPLB_CUDA_KERNELS_COPY_BODY_H_
#define EPLB_CUDA_KERNELS_COPY_BODY_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cuda/kernels/aligned_access.h"
#include "cuda/kernels/checksum_body.h"

namespace eplb::cuda {

// One row. Source and destination never overlap, and no row's destination overlaps another's.
struct RowCopy {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;  // null: only the checksum
  int64_t num_bytes = 0;
};
static_assert(std::is_trivially_copyable_v<RowCopy>);

// A row of the table that the kernel reads. The tiles of all rows are numbered through, so that
// blocks have equal work whatever the rows' sizes.
struct TiledRow {
  RowCopy copy;
  int64_t first_tile = 0;  // the number of tiles of all rows before
};
static_assert(std::is_trivially_copyable_v<TiledRow>);

inline constexpr int64_t kCopyTileBytes = int64_t{64} * 1024;

// The tiles of a row. An empty row has one too: something must add its ChecksumLength.
EPLB_HOST_DEVICE inline int64_t NumCopyTiles(int64_t num_bytes) {
  return num_bytes == 0 ? 1 : (num_bytes + kCopyTileBytes - 1) / kCopyTileBytes;
}

// The row that `tile` is of: the last that begins at or before it. REQUIRES: num_rows >= 1.
EPLB_HOST_DEVICE inline int32_t RowOfTile(const TiledRow* rows, int32_t num_rows, int64_t tile) {
  int32_t first = 0;
  int32_t last = num_rows - 1;
  while (first < last) {
    const int32_t middle = first + (last - first + 1) / 2;
    if (rows[middle].first_tile <= tile) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return first;
}

// What a thread copies at once.
struct alignas(16) CopyUnit {
  uint64_t lanes[2];
};
inline constexpr int64_t kCopyUnitBytes = sizeof(CopyUnit);
inline constexpr int32_t kCopyUnitLanes = kCopyUnitBytes / kChecksumLaneBytes;
static_assert(kCopyTileBytes % kCopyUnitBytes == 0);

template <bool kChecksum>
EPLB_HOST_DEVICE inline uint64_t StoreUnit(const RowCopy& row, int64_t offset,
                                           const CopyUnit& unit) {
  if (row.destination != nullptr) StoreStreamed(row.destination + offset, unit);
  if constexpr (!kChecksum) return 0;
  const auto lane = static_cast<uint64_t>(offset / kChecksumLaneBytes);
  return ChecksumLane(unit.lanes[0], lane) + ChecksumLane(unit.lanes[1], lane + 1);
}

// A unit at any alignment, which the row may end in, byte by byte.
template <bool kChecksum>
EPLB_HOST_DEVICE inline uint64_t CopyRaggedUnit(const RowCopy& row, int64_t offset) {
  uint64_t sum = 0;
  for (int32_t i = 0; i < kCopyUnitLanes; ++i, offset += kChecksumLaneBytes) {
    const int64_t left = row.num_bytes - offset;
    if (left <= 0) break;
    const auto size = static_cast<int32_t>(left < kChecksumLaneBytes ? left : kChecksumLaneBytes);
    uint64_t word = 0;
    for (int32_t byte = 0; byte < size; ++byte) {
      const std::byte value = row.source[offset + byte];
      word |= static_cast<uint64_t>(value) << 8 * byte;
      if (row.destination != nullptr) row.destination[offset + byte] = value;
    }
    if constexpr (kChecksum) {
      sum += ChecksumLane(word, static_cast<uint64_t>(offset / kChecksumLaneBytes));
    }
  }
  return sum;
}

// Thread `thread` of `num_threads` at tile `tile` of a row, 0..NumCopyTiles-1: copies every
// num_threads-th unit of it. The sum of the returned values over all threads and tiles of a row is
// its ChecksumOnHost; without kChecksum they are 0.
template <bool kChecksum>
EPLB_HOST_DEVICE inline uint64_t CopyTilePart(const RowCopy& row, int64_t tile, int32_t thread,
                                              int32_t num_threads) {
  const int64_t begin = tile * kCopyTileBytes;
  const int64_t left = row.num_bytes - begin;
  const int64_t size = left < kCopyTileBytes ? left : kCopyTileBytes;
  const bool aligned =
      IsAligned(row.source, alignof(CopyUnit)) && IsAligned(row.destination, alignof(CopyUnit));
  const int64_t end = begin + size;
  const int64_t whole = aligned ? begin + size / kCopyUnitBytes * kCopyUnitBytes : begin;
  const int64_t step = int64_t{num_threads} * kCopyUnitBytes;
  uint64_t sum = 0;
  if constexpr (kChecksum) {
    if (tile == 0 && thread == 0) sum = ChecksumLength(static_cast<uint64_t>(row.num_bytes));
  }
  int64_t offset = begin + thread * kCopyUnitBytes;
  // Loads before stores: the compiler may not move a load over a store, and with one load under way
  // a thread waits for memory most of its time.
  constexpr int32_t kUnitsUnderWay = 4;
  for (; offset + (kUnitsUnderWay - 1) * step < whole; offset += kUnitsUnderWay * step) {
    CopyUnit units[kUnitsUnderWay];
    for (int32_t i = 0; i < kUnitsUnderWay; ++i) {
      units[i] = LoadStreamed<CopyUnit>(row.source + offset + i * step);
    }
    for (int32_t i = 0; i < kUnitsUnderWay; ++i) {
      sum += StoreUnit<kChecksum>(row, offset + i * step, units[i]);
    }
  }
  for (; offset < whole; offset += step) {
    sum += StoreUnit<kChecksum>(row, offset, LoadStreamed<CopyUnit>(row.source + offset));
  }
  for (offset = whole + thread * kCopyUnitBytes; offset < end; offset += step) {
    sum += CopyRaggedUnit<kChecksum>(row, offset);
  }
  return sum;
}

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_COPY_BODY_H_
