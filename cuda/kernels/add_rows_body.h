// The body of the row addition: what one thread adds of one tile of one row.
#ifndef EPLB_CUDA_KERNELS_ADD_ROWS_BODY_H_
#define EPLB_CUDA_KERNELS_ADD_ROWS_BODY_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/kernels/aligned_access.h"
#include "cuda/kernels/copy_body.h"
#include "cuda/kernels/element_body.h"

namespace eplb::cuda {

template <class Element>
EPLB_HOST_DEVICE inline typename Element::Stored SumOf(typename Element::Stored a,
                                                       typename Element::Stored b) {
  return Element::Round(Element::Load(a) + Element::Load(b));
}

// What is added at once, and its sum.
#ifndef __CUDA_ARCH__
template <class Element>
using AddWord = typename Element::Stored;

template <class Element>
AddWord<Element> SumOfWords(AddWord<Element> a, AddWord<Element> b) {
  return SumOf<Element>(a, b);
}
#else
template <class Element>
using AddWord =
    std::conditional_t<sizeof(typename Element::Stored) == 2, uint32_t, typename Element::Stored>;

// Two halfwords that are rounded once have the bits of those that are rounded to float before, for
// a float has more than twice as many.
// source: Figueroa 1995, "When is double rounding innocuous?".
template <class Element>
__device__ inline AddWord<Element> SumOfWords(AddWord<Element> a, AddWord<Element> b) {
  if constexpr (sizeof(typename Element::Stored) == 2) {
    using Pair = typename Element::Pair;
    constexpr uint32_t kNans = uint32_t{kHalfwordNan} << 16 | kHalfwordNan;
    const Pair sum = __hadd2_rn(BitsAs<Pair>(a), BitsAs<Pair>(b));
    const uint32_t is_nan = __hneu2_mask(sum, sum);  // 0xffff for each that is
    return (BitsAs<uint32_t>(sum) & ~is_nan) | (kNans & is_nan);
  } else {
    return SumOf<Element>(a, b);
  }
}
#endif

template <class Element>
EPLB_HOST_DEVICE inline CopyUnit SumOfUnits(const CopyUnit& a, const CopyUnit& b) {
  using Word = AddWord<Element>;
  constexpr auto kWords = static_cast<int32_t>(sizeof(CopyUnit) / sizeof(Word));
  Word left[kWords];
  Word right[kWords];
  std::memcpy(left, &a, sizeof(a));
  std::memcpy(right, &b, sizeof(b));
  EPLB_UNROLL
  for (int32_t i = 0; i < kWords; ++i) left[i] = SumOfWords<Element>(left[i], right[i]);
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
    EPLB_UNROLL
    for (int32_t i = 0; i < kUnitsUnderWay; ++i) {
      here[i] = LoadStreamed<CopyUnit>(row.destination + offset + i * step);
      there[i] = LoadStreamed<CopyUnit>(row.source + offset + i * step);
    }
    EPLB_UNROLL
    for (int32_t i = 0; i < kUnitsUnderWay; ++i) {
      StoreStreamed(row.destination + offset + i * step, SumOfUnits<Element>(here[i], there[i]));
    }
  }
  for (; offset < whole; offset += step) {
    StoreStreamed(row.destination + offset,
                  SumOfUnits<Element>(LoadStreamed<CopyUnit>(row.destination + offset),
                                      LoadStreamed<CopyUnit>(row.source + offset)));
  }
  for (offset = whole + thread * kCopyUnitBytes; offset < end; offset += step) {
    AddRaggedUnit<Element>(row, offset);
  }
}

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_ADD_ROWS_BODY_H_
