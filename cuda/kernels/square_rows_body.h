// The body of the sums of squares: what one unit of a row adds, and how the sums of a row's lanes
// and parts become one. The order of all additions follows from the number of elements alone, so
// that CPU and GPU, any alignment and any grid give the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/kernels/aligned_access.h"
#include "cuda/kernels/copy_body.h"
#include "cuda/kernels/element_body.h"

namespace eplb::cuda {

// A row is cut into parts, so that many multiprocessors sum a long one. Unit u of a part is added
// to lane u % kSquareLanes, units rising; the lanes of a part are added as a tree, the parts of a
// row one after the other.
inline constexpr int32_t kSquareLanes = 256;
inline constexpr int32_t kMaxSquareParts = 64;  // most parts of a row
// Loads that a lane has under way: 64 multiprocessors with 256 * 8 * 16 B = 32 KiB each reach the
// memory's speed.
inline constexpr int32_t kSquareUnitsUnderWay = 8;
inline constexpr int64_t kSquareRoundUnits = int64_t{kSquareLanes} * kSquareUnitsUnderWay;
inline constexpr int64_t kMinSquarePartUnits = 2 * kSquareRoundUnits;  // 64 KiB

EPLB_HOST_DEVICE inline int64_t NumSquareUnits(int64_t num_bytes) {
  return (num_bytes + kCopyUnitBytes - 1) / kCopyUnitBytes;
}

// Returns the units of every part but a row's last: whole rounds.
EPLB_HOST_DEVICE inline int64_t SquarePartUnits(int64_t num_bytes) {
  constexpr int64_t kRowRound = kMaxSquareParts * kSquareRoundUnits;
  const int64_t rounds = (NumSquareUnits(num_bytes) + kRowRound - 1) / kRowRound;
  const int64_t units = rounds * kSquareRoundUnits;
  return units < kMinSquarePartUnits ? kMinSquarePartUnits : units;
}

EPLB_HOST_DEVICE inline int32_t NumSquareParts(int64_t num_bytes) {
  const int64_t part = SquarePartUnits(num_bytes);
  return static_cast<int32_t>((NumSquareUnits(num_bytes) + part - 1) / part);
}

// Rounded twice: one instruction for both would give a float64's square other bits.
EPLB_HOST_DEVICE inline double PlusSquare(double sum, double value) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(sum, __dmul_rn(value, value));
#else
  return sum + value * value;
#endif
}

// `sum` and the squares of a unit's elements, one after the other.
template <class Element>
EPLB_HOST_DEVICE inline double PlusUnitSquares(const CopyUnit& unit, double sum) {
  using Stored = typename Element::Stored;
  constexpr auto kElements = static_cast<int32_t>(sizeof(CopyUnit) / sizeof(Stored));
  Stored elements[kElements];
  std::memcpy(elements, &unit, sizeof(unit));
  EPLB_UNROLL
  for (int32_t i = 0; i < kElements; ++i) {
    sum = PlusSquare(sum, static_cast<double>(Element::Load(elements[i])));
  }
  return sum;
}

// A unit at any alignment, which the row may end in: zeros stand for what is not there. REQUIRES:
// num_bytes is a multiple of the element's size.
template <class Element>
EPLB_HOST_DEVICE inline CopyUnit LoadRaggedUnit(const RowCopy& row, int64_t unit) {
  using Stored = typename Element::Stored;
  constexpr auto kElements = static_cast<int32_t>(sizeof(CopyUnit) / sizeof(Stored));
  const int64_t offset = unit * kCopyUnitBytes;
  const int64_t left = row.num_bytes - offset;
  Stored elements[kElements] = {};
  const bool aligned = IsAligned(row.source, sizeof(Stored));
  EPLB_UNROLL
  for (int32_t i = 0; i < kElements; ++i) {
    const auto at = static_cast<int64_t>(i * sizeof(Stored));
    if (at >= left) break;
    const std::byte* const element = row.source + offset + at;
    if (aligned) {
      elements[i] = LoadStreamed<Stored>(element);
    } else {
      std::memcpy(&elements[i], element, sizeof(Stored));
    }
  }
  CopyUnit result;
  std::memcpy(&result, elements, sizeof(result));
  return result;
}

// The units of a part, and how many of them vectors can load.
struct SquarePart {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t whole_end = 0;
};

EPLB_HOST_DEVICE inline SquarePart SquarePartOf(const RowCopy& row, int32_t part) {
  const int64_t size = SquarePartUnits(row.num_bytes);
  const int64_t num_units = NumSquareUnits(row.num_bytes);
  const int64_t num_whole = row.num_bytes / kCopyUnitBytes;
  SquarePart result{.begin = part * size, .end = (part + 1) * size};
  if (result.end > num_units) result.end = num_units;
  result.whole_end = result.end < num_whole ? result.end : num_whole;
  if (!IsAligned(row.source, alignof(CopyUnit))) result.whole_end = result.begin;
  return result;
}

// Returns the sum of one lane over a part.
template <class Element>
EPLB_HOST_DEVICE inline double SquaresOfLane(const RowCopy& row, int32_t part, int32_t lane) {
  const SquarePart units = SquarePartOf(row, part);
  double sum = 0;
  int64_t unit = units.begin + lane;
  for (; unit + (kSquareUnitsUnderWay - 1) * kSquareLanes < units.whole_end;
       unit += kSquareRoundUnits) {
    CopyUnit loaded[kSquareUnitsUnderWay];
    EPLB_UNROLL
    for (int32_t i = 0; i < kSquareUnitsUnderWay; ++i) {
      loaded[i] = LoadStreamed<CopyUnit>(row.source + (unit + i * kSquareLanes) * kCopyUnitBytes);
    }
    EPLB_UNROLL
    for (int32_t i = 0; i < kSquareUnitsUnderWay; ++i) {
      sum = PlusUnitSquares<Element>(loaded[i], sum);
    }
  }
  for (; unit < units.whole_end; unit += kSquareLanes) {
    sum = PlusUnitSquares<Element>(LoadStreamed<CopyUnit>(row.source + unit * kCopyUnitBytes), sum);
  }
  for (; unit < units.end; unit += kSquareLanes) {
    sum = PlusUnitSquares<Element>(LoadRaggedUnit<Element>(row, unit), sum);
  }
  return sum;
}

// A step of the tree over the lanes, distance = kSquareLanes / 2, then half of it, down to 1: lane
// 0 has the sum of the part at the end. REQUIRES: lane < distance.
EPLB_HOST_DEVICE inline void AddLane(double* lanes, int32_t lane, int32_t distance) {
  lanes[lane] += lanes[lane + distance];
}

// The sum of a row. parts: its first part; the others follow at `stride`.
EPLB_HOST_DEVICE inline double SumOfParts(const double* parts, int32_t num_parts, int64_t stride) {
  double sum = 0;
  for (int32_t part = 0; part < num_parts; ++part) sum += parts[part * stride];
  return Float64Element::Round(sum);  // a NaN has the same bits everywhere
}

}  // namespace eplb::cuda
