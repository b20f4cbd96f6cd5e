// The body of the row addition: what one thread adds of one tile of one row.
#pragma once

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

// The unit of an addition, and its sum.
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

// Unit: CopyUnit, or an AddWord.
template <class Element, class Unit>
EPLB_HOST_DEVICE inline Unit SumOfUnits(const Unit& a, const Unit& b) {
  using Word = AddWord<Element>;
  constexpr auto kWords = static_cast<int32_t>(sizeof(Unit) / sizeof(Word));
  Word left[kWords];
  Word right[kWords];
  std::memcpy(left, &a, sizeof(a));
  std::memcpy(right, &b, sizeof(b));
  EPLB_UNROLL
  for (int32_t i = 0; i < kWords; ++i) left[i] = SumOfWords<Element>(left[i], right[i]);
  Unit sum;
  std::memcpy(&sum, left, sizeof(sum));
  return sum;
}

// Adds whole units of a range, at addresses that are multiples of one.
template <class Element, class Unit>
EPLB_HOST_DEVICE inline void AddUnits(const RowCopy& row, const ByteRange& range, int32_t thread,
                                      int32_t num_threads) {
  struct Pair {
    Unit here;
    Unit there;
  };
  const auto load = [&row](int64_t offset) {
    return Pair{LoadStreamed<Unit>(row.destination + offset),
                LoadStreamed<Unit>(row.source + offset)};
  };
  const auto store = [&row](int64_t offset, const Pair& pair) {
    StoreStreamed(row.destination + offset, SumOfUnits<Element>(pair.here, pair.there));
    return 0;
  };
  TakeUnits<sizeof(Unit)>(range, thread, num_threads, load, store);
}

// Adds the elements of a range, at any alignment.
template <class Element>
EPLB_HOST_DEVICE inline void AddElements(const RowCopy& row, const ByteRange& range, int32_t thread,
                                         int32_t num_threads) {
  using Stored = typename Element::Stored;
  constexpr auto kSize = static_cast<int64_t>(sizeof(Stored));
  for (int64_t offset = range.begin + thread * kSize; offset < range.end;
       offset += num_threads * kSize) {
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
  using Word = AddWord<Element>;
  const ByteRange range = BytesOfTile(row, tile);
  const int32_t head = BytesBeforeUnits(row);
  ByteRange whole{range.begin, range.begin};
  if (head >= 0 && AreAligned(row, sizeof(typename Element::Stored))) {
    if (range.end - range.begin > head) {
      whole.begin += head;
      whole.end = range.end - (range.end - whole.begin) % kCopyUnitBytes;
      AddUnits<Element, CopyUnit>(row, whole, thread, num_threads);
    }
  } else if (AreAligned(row, sizeof(Word))) {
    whole.end = range.end - (range.end - range.begin) % static_cast<int64_t>(sizeof(Word));
    AddUnits<Element, Word>(row, whole, thread, num_threads);
  }
  AddElements<Element>(row, {range.begin, whole.begin}, thread, num_threads);
  AddElements<Element>(row, {whole.end, range.end}, thread, num_threads);
}

}  // namespace eplb::cuda
