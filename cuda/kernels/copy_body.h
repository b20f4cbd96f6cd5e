// The body of the batched row copy: what one thread copies of one tile of one row, and what that
// adds to the row's checksum. No barrier, no atomic: the caller adds.
#pragma once

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

// Unit that a thread copies at once.
struct alignas(16) CopyUnit {
  uint64_t lanes[2];
};
inline constexpr int64_t kCopyUnitBytes = sizeof(CopyUnit);
inline constexpr int32_t kCopyUnitLanes = kCopyUnitBytes / kChecksumLaneBytes;
static_assert(kCopyTileBytes % kCopyUnitBytes == 0);

// A range of a row's bytes that the threads of a block share.
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
};

EPLB_HOST_DEVICE inline ByteRange BytesOfTile(const RowCopy& row, int64_t tile) {
  const int64_t begin = tile * kCopyTileBytes;
  const int64_t left = row.num_bytes - begin;
  return {begin, begin + (left < kCopyTileBytes ? left : kCopyTileBytes)};
}

// Bytes of a row, and of each of its tiles, before the first address that is a multiple of a unit,
// in source and destination alike; -1: there is none.
EPLB_HOST_DEVICE inline int32_t BytesBeforeUnits(const RowCopy& row) {
  const auto source = reinterpret_cast<uintptr_t>(row.source);
  const auto destination = reinterpret_cast<uintptr_t>(row.destination);
  if (row.destination != nullptr && (source - destination) % kCopyUnitBytes != 0) return -1;
  return static_cast<int32_t>((0 - source) % kCopyUnitBytes);
}

// True if source and destination are aligned.
EPLB_HOST_DEVICE inline bool AreAligned(const RowCopy& row, uintptr_t alignment) {
  return IsAligned(row.source, alignment) && IsAligned(row.destination, alignment);
}

// A lane at any alignment, which `end` may cut short, byte by byte.
template <bool kChecksum>
EPLB_HOST_DEVICE inline uint64_t CopyRaggedLane(const RowCopy& row, int64_t offset, int64_t end) {
  const int64_t left = end - offset;
  const auto size = static_cast<int32_t>(left < kChecksumLaneBytes ? left : kChecksumLaneBytes);
  uint64_t word = 0;
  for (int32_t byte = 0; byte < size; ++byte) {
    const auto value = LoadStreamed<uint8_t>(row.source + offset + byte);
    word |= static_cast<uint64_t>(value) << 8 * byte;
    if (row.destination != nullptr) StoreStreamed(row.destination + offset + byte, value);
  }
  if constexpr (!kChecksum) return 0;
  return ChecksumLane(word, static_cast<uint64_t>(offset / kChecksumLaneBytes));
}

// Lanes of a range that begins with a lane; a thread takes every num_threads-th.
template <bool kChecksum>
EPLB_HOST_DEVICE inline uint64_t CopyRaggedLanes(const RowCopy& row, const ByteRange& range,
                                                 int32_t thread, int32_t num_threads) {
  uint64_t sum = 0;
  const int64_t step = int64_t{num_threads} * kChecksumLaneBytes;
  for (int64_t offset = range.begin + thread * kChecksumLaneBytes; offset < range.end;
       offset += step) {
    sum += CopyRaggedLane<kChecksum>(row, offset, range.end);
  }
  return sum;
}

// Takes a thread's units of a range, every num_threads-th, and adds up what store(offset,
// load(offset)) returns. Loads before stores: the compiler may not move a load over a store, and
// with one load under way a thread waits for memory most of its time.
template <int64_t kUnitBytes, class Load, class Store>
EPLB_HOST_DEVICE inline uint64_t TakeUnits(const ByteRange& range, int32_t thread,
                                           int32_t num_threads, const Load& load,
                                           const Store& store) {
  constexpr int32_t kUnitsUnderWay = 4;
  const int64_t step = int64_t{num_threads} * kUnitBytes;
  int64_t offset = range.begin + thread * kUnitBytes;
  uint64_t sum = 0;
  for (; offset + (kUnitsUnderWay - 1) * step < range.end; offset += kUnitsUnderWay * step) {
    decltype(load(offset)) loaded[kUnitsUnderWay];
    EPLB_UNROLL
    for (int32_t i = 0; i < kUnitsUnderWay; ++i) loaded[i] = load(offset + i * step);
    EPLB_UNROLL
    for (int32_t i = 0; i < kUnitsUnderWay; ++i) sum += store(offset + i * step, loaded[i]);
  }
  for (; offset < range.end; offset += step) sum += store(offset, load(offset));
  return sum;
}

// Whole lanes of a range, at addresses that are multiples of a Word.
template <bool kChecksum, class Word>
EPLB_HOST_DEVICE inline uint64_t CopyLanes(const RowCopy& row, const ByteRange& range,
                                           int32_t thread, int32_t num_threads) {
  constexpr auto kWords = static_cast<int32_t>(kChecksumLaneBytes / sizeof(Word));
  const auto load = [&row](int64_t offset) {
    uint64_t lane = 0;
    EPLB_UNROLL
    for (int32_t i = 0; i < kWords; ++i) {
      const auto word = LoadStreamed<Word>(row.source + offset + i * sizeof(Word));
      lane |= uint64_t{word} << 8 * sizeof(Word) * i;
    }
    return lane;
  };
  const auto store = [&row](int64_t offset, uint64_t lane) {
    EPLB_UNROLL
    for (int32_t i = 0; i < kWords; ++i) {
      const auto word = static_cast<Word>(lane >> 8 * sizeof(Word) * i);
      StoreStreamed(row.destination + offset + i * sizeof(Word), word);
    }
    if constexpr (!kChecksum) return uint64_t{0};
    return ChecksumLane(lane, static_cast<uint64_t>(offset / kChecksumLaneBytes));
  };
  return TakeUnits<kChecksumLaneBytes>(range, thread, num_threads, load, store);
}

struct UnitInRow {
  CopyUnit unit;
  uint64_t before;  // the 8 bytes before it, as a lane
};

// The sum of the two lanes that begin `shift` bytes before the unit at `offset`, shift 0..7.
EPLB_HOST_DEVICE inline uint64_t ChecksumUnit(const UnitInRow& loaded, int64_t offset,
                                              int32_t shift) {
  uint64_t first = loaded.unit.lanes[0];
  uint64_t second = loaded.unit.lanes[1];
  if (shift != 0) {
    const int32_t bits = 8 * shift;
    second = second << bits | first >> (64 - bits);
    first = first << bits | loaded.before >> (64 - bits);
  }
  const auto lane = static_cast<uint64_t>((offset - shift) / kChecksumLaneBytes);
  return ChecksumLane(first, lane) + ChecksumLane(second, lane + 1);
}

// Copies the units of a range, at addresses that are multiples of one, and sums the lanes that
// begin `shift` bytes before each. kShifted: whether shift is above 0.
template <bool kChecksum, bool kShifted>
EPLB_HOST_DEVICE inline uint64_t CopyUnits(const RowCopy& row, const ByteRange& range,
                                           int32_t shift, int32_t thread, int32_t num_threads) {
  const auto load = [&row](int64_t offset) {
    UnitInRow loaded{.unit = LoadStreamed<CopyUnit>(row.source + offset), .before = 0};
    // Another thread loads these bytes as the end of its unit: the cache has them. Of a row's first
    // they may begin before the row, in the same word as its first byte.
    if constexpr (kShifted) {
      loaded.before = LoadStreamed<uint64_t>(row.source + offset - kChecksumLaneBytes);
    }
    return loaded;
  };
  const auto store = [&row, shift](int64_t offset, const UnitInRow& loaded) {
    if (row.destination != nullptr) StoreStreamed(row.destination + offset, loaded.unit);
    if constexpr (!kChecksum) return uint64_t{0};
    return ChecksumUnit(loaded, offset, kShifted ? shift : 0);
  };
  return TakeUnits<kCopyUnitBytes>(range, thread, num_threads, load, store);
}

// A tile whose units begin `head` bytes behind its begin. Lanes count from the row's begin and may
// lie across two units.
template <bool kChecksum>
EPLB_HOST_DEVICE inline uint64_t CopyTileByUnits(const RowCopy& row, const ByteRange& tile,
                                                 int32_t head, int32_t thread,
                                                 int32_t num_threads) {
  if (tile.end - tile.begin < head + kCopyUnitBytes) {
    return CopyRaggedLanes<kChecksum>(row, tile, thread, num_threads);
  }
  const auto shift = static_cast<int32_t>(head % kChecksumLaneBytes);
  const int64_t begin = tile.begin + head;
  const ByteRange units{begin, tile.end - (tile.end - begin) % kCopyUnitBytes};
  uint64_t sum = CopyRaggedLanes<kChecksum>(row, {tile.begin, begin - shift}, thread, num_threads);
  // The lane that the first unit ends is summed with that unit.
  (void)CopyRaggedLanes<false>(row, {begin - shift, begin}, thread, num_threads);
  if (kChecksum && shift != 0) {
    sum += CopyUnits<kChecksum, true>(row, units, shift, thread, num_threads);
  } else {
    sum += CopyUnits<kChecksum, false>(row, units, 0, thread, num_threads);
  }
  // The lane that the last unit begins is copied again: it is summed here.
  return sum + CopyRaggedLanes<kChecksum>(row, {units.end - shift, tile.end}, thread, num_threads);
}

// Thread `thread` of `num_threads` at tile `tile` of a row, 0..NumCopyTiles-1: copies every
// num_threads-th unit of it. The sum of the returned values over all threads and tiles of a row is
// its ChecksumOnHost; without kChecksum they are 0.
template <bool kChecksum>
EPLB_HOST_DEVICE inline uint64_t CopyTilePart(const RowCopy& row, int64_t tile, int32_t thread,
                                              int32_t num_threads) {
  const ByteRange range = BytesOfTile(row, tile);
  uint64_t sum = 0;
  if constexpr (kChecksum) {
    if (tile == 0 && thread == 0) sum = ChecksumLength(static_cast<uint64_t>(row.num_bytes));
  }
  const int32_t head = BytesBeforeUnits(row);
  if (head >= 0) return sum + CopyTileByUnits<kChecksum>(row, range, head, thread, num_threads);
  const ByteRange lanes{range.begin, range.end - (range.end - range.begin) % kChecksumLaneBytes};
  ByteRange rest{lanes.end, range.end};
  if (AreAligned(row, sizeof(uint64_t))) {
    sum += CopyLanes<kChecksum, uint64_t>(row, lanes, thread, num_threads);
  } else if (AreAligned(row, sizeof(uint32_t))) {
    sum += CopyLanes<kChecksum, uint32_t>(row, lanes, thread, num_threads);
  } else {
    rest = range;
  }
  return sum + CopyRaggedLanes<kChecksum>(row, rest, thread, num_threads);
}

}  // namespace eplb::cuda
