// The body of the sums of squares: what one unit of a row adds, and how the sums of a row's lanes
// become one. The order of all additions follows from the number of elements alone, so that CPU and
// GPU, any alignment and any grid give the same bits.
#ifndef EPLB_CUDA_KERNELS_SQUARE_ROWS_BODY_H_
#define EPLB_CUDA_KERNELS_SQUARE_ROWS_BODY_H_

#include <cstdint>
#include <cstring>

#include "cuda/kernels/aligned_access.h"
#include "cuda/kernels/copy_body.h"

namespace eplb::cuda {

// Unit u of a row is added to lane u % kSquareLanes, units rising.
inline constexpr int32_t kSquareLanes = 1024;

EPLB_HOST_DEVICE inline int64_t NumSquareUnits(int64_t num_bytes) {
  return (num_bytes + kCopyUnitBytes - 1) / kCopyUnitBytes;
}

// Rounded twice: one instruction for both would give a float64's square other bits.
EPLB_HOST_DEVICE inline double PlusSquare(double sum, double value) {
#ifdef __CUDA_ARCH__
  return __dadd_rn(sum, __dmul_rn(value, value));
#else
  return sum + value * value;
#endif
}

// `sum` and the squares of a unit's elements, one after the other. REQUIRES: num_bytes is a
// multiple of the element's size.
template <class Element>
EPLB_HOST_DEVICE inline double PlusUnitSquares(const RowCopy& row, int64_t unit, double sum) {
  using Stored = typename Element::Stored;
  constexpr auto kElements = static_cast<int32_t>(sizeof(CopyUnit) / sizeof(Stored));
  const int64_t offset = unit * kCopyUnitBytes;
  const int64_t left = row.num_bytes - offset;
  Stored elements[kElements] = {};  // of those that are not there, 0 is added
  if (left >= kCopyUnitBytes && IsAligned(row.source, alignof(CopyUnit))) {
    const auto loaded = LoadAligned<CopyUnit>(row.source + offset);
    std::memcpy(elements, &loaded, sizeof(loaded));
  } else {
    for (int32_t i = 0; i < kElements; ++i) {
      const auto at = static_cast<int64_t>(i * sizeof(Stored));
      if (at < left) std::memcpy(&elements[i], row.source + offset + at, sizeof(Stored));
    }
  }
  for (int32_t i = 0; i < kElements; ++i) {
    sum = PlusSquare(sum, static_cast<double>(Element::Load(elements[i])));
  }
  return sum;
}

// A step of the tree over the lanes, distance = kSquareLanes / 2, then half of it, down to 1: lane
// 0 has the sum of the row at the end. REQUIRES: lane < distance.
EPLB_HOST_DEVICE inline void AddLane(double* lanes, int32_t lane, int32_t distance) {
  lanes[lane] += lanes[lane + distance];
}

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_SQUARE_ROWS_BODY_H_
