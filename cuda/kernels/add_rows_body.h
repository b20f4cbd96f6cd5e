// The body of the row addition: what one thread adds of one tile of one row.
#ifndef EPLB_CUDA_KERNELS_ADD_ROWS_BODY_H_
#define EPLB_CUDA_KERNELS_ADD_ROWS_BODY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cuda/kernels/aligned_access.h"
#include "cuda/kernels/copy_body.h"
#include "cuda/kernels/element_body.h"

namespace eplb::cuda {

template <class Element>
EPLB_HOST_DEVICE inline typename Element::Stored SumOf(typename Element::Stored a,
                                                       typename Element::Stored b) {
  return Element::Round(Element::Load(a) + Element::Load(b));
}

template <class Element>
EPLB_HOST_DEVICE inline CopyUnit SumOfUnits(const CopyUnit& a, const CopyUnit& b) {
  using Stored = typename Element::Stored;
  constexpr auto kElements = static_cast<int32_t>(sizeof(CopyUnit) / sizeof(Stored));
  Stored left[kElements];
  Stored right[kElements];
  std::memcpy(left, &a, sizeof(a));
  std::memcpy(right, &b, sizeof(b));
  for (int32_t i = 0; i < kElements; ++i) left[i] = SumOf<Element>(left[i], right[i]);
  CopyUnit sum;
  std::memcpy(&sum, left, sizeof(sum));
  return sum;
}

// A unit at any alignment, which the row may end in, element by element.
template <class Element>
EPLB_HOST_DEVICE inline void AddRaggedUnit(const RowCopy& row, int64_t offset) {
  using Stored = typename Element::Stored;
  constexpr auto kSize = static_cast<int64_t>(sizeof(Stored));
  const int64_t end =
      row.num_bytes - offset < kCopyUnitBytes ? row.num_bytes : offset + kCopyUnitBytes;
  for (; offset < end; offset += kSize) {
    Stored here;
    Stored there;
    std::memcpy(&here, row.destination + offset, sizeof(here));
    std::memcpy(&there, row.source + offset, sizeof(there));
    here = SumOf<Element>(here, there);
    std::memcpy(row.destination + offset, &here, sizeof(here));
  }
}

// Thread `thread` of `num_threads` at tile `tile` of a row, 0..NumCopyTiles-1: adds every
// num_threads-th unit of the source to the destination. REQUIRES: num_bytes is a multiple of the
// element's size.
template <class Element>
EPLB_HOST_DEVICE inline void AddTilePart(const RowCopy& row, int64_t tile, int32_t thread,
                                         int32_t num_threads) {
  const int64_t begin = tile * kCopyTileBytes;
  const int64_t left = row.num_bytes - begin;
  const int64_t size = left < kCopyTileBytes ? left : kCopyTileBytes;
  const bool aligned =
      IsAligned(row.source, alignof(CopyUnit)) && IsAligned(row.destination, alignof(CopyUnit));
  const int64_t end = begin + size;
  const int64_t whole = aligned ? begin + size / kCopyUnitBytes * kCopyUnitBytes : begin;
  const int64_t step = int64_t{num_threads} * kCopyUnitBytes;
  int64_t offset = begin + thread * kCopyUnitBytes;
  // Loads before stores, as in the row copy.
  constexpr int32_t kUnitsUnderWay = 4;
  for (; offset + (kUnitsUnderWay - 1) * step < whole; offset += kUnitsUnderWay * step) {
    CopyUnit here[kUnitsUnderWay];
    CopyUnit there[kUnitsUnderWay];
    for (int32_t i = 0; i < kUnitsUnderWay; ++i) {
      here[i] = LoadAligned<CopyUnit>(row.destination + offset + i * step);
      there[i] = LoadAligned<CopyUnit>(row.source + offset + i * step);
    }
    for (int32_t i = 0; i < kUnitsUnderWay; ++i) {
      StoreAligned(row.destination + offset + i * step, SumOfUnits<Element>(here[i], there[i]));
    }
  }
  for (; offset < whole; offset += step) {
    StoreAligned(row.destination + offset,
                 SumOfUnits<Element>(LoadAligned<CopyUnit>(row.destination + offset),
                                     LoadAligned<CopyUnit>(row.source + offset)));
  }
  for (offset = whole + thread * kCopyUnitBytes; offset < end; offset += step) {
    AddRaggedUnit<Element>(row, offset);
  }
}

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_ADD_ROWS_BODY_H_
