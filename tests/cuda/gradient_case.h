// Rows of gradients of all sizes and alignments in two arenas with red zones, and what adding and
// squaring them must give, worked out in plain float64: for the host and the device test.
#ifndef EPLB_TESTS_CUDA_GRADIENT_CASE_H_
#define EPLB_TESTS_CUDA_GRADIENT_CASE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "cuda/kernels/copy_body.h"
#include "cuda/kernels/element_body.h"
#include "tests/cuda/copy_case.h"

namespace eplb::cuda::testing {

inline constexpr ElementType kElementTypes[] = {ElementType::kFloat32, ElementType::kFloat64,
                                                ElementType::kBfloat16, ElementType::kFloat16};

// A format of 16 bits, sign and exponent before the fraction.
struct Halfword {
  int fraction_bits = 10;
  int min_exponent = -14;
};
inline constexpr Halfword kHalf{10, -14};
inline constexpr Halfword kBrain{7, -126};

// The value of finite, non-negative bits.
inline double Magnitude(const Halfword& format, int bits) {
  const int exponent = bits >> format.fraction_bits;
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int whole = exponent == 0 ? 0 : 1 << format.fraction_bits;
  return std::ldexp(whole + fraction,
                    format.min_exponent + std::max(exponent - 1, 0) - format.fraction_bits);
}
// Bits of infinity: above all finite ones.
inline int InfinityOf(const Halfword& format) { return 0x8000 - (1 << format.fraction_bits); }

// The nearest bits to a value that is no NaN, ties to even, by search among all.
inline uint16_t Nearest(const Halfword& format, double value) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  value = std::abs(value);
  int below = 0;
  for (int above = InfinityOf(format); above - below > 1;) {
    const int middle = (below + above) / 2;
    (Magnitude(format, middle) <= value ? below : above) = middle;
  }
  // What would follow the largest is as far from it as the one before.
  const double low = Magnitude(format, below);
  const double high = below + 1 == InfinityOf(format) ? 2 * low - Magnitude(format, below - 1)
                                                      : Magnitude(format, below + 1);
  const bool up = value - low > high - value || (value - low == high - value && (below & 1) == 1);
  return static_cast<uint16_t>(sign | (below + (up ? 1 : 0)));
}

inline double Decode(ElementType type, const std::byte* at) {
  if (type == ElementType::kFloat64) {
    double value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  if (type == ElementType::kFloat32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  }
  const Halfword format = type == ElementType::kFloat16 ? kHalf : kBrain;
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  const double magnitude = Magnitude(format, bits & 0x7fff);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Rounds `value` to the type, to nearest.
inline void Encode(ElementType type, double value, std::byte* at) {
  if (type == ElementType::kFloat64) {
    std::memcpy(at, &value, sizeof(value));
  } else if (type == ElementType::kFloat32) {
    const auto rounded = static_cast<float>(value);
    std::memcpy(at, &rounded, sizeof(rounded));
  } else {
    const uint16_t bits = Nearest(type == ElementType::kFloat16 ? kHalf : kBrain, value);
    std::memcpy(at, &bits, sizeof(bits));
  }
}

// Both are of `type`. Halves are added as floats: their sum is rounded twice.
inline double PlainSum(ElementType type, double a, double b) {
  if (type == ElementType::kFloat64) return a + b;
  return static_cast<double>(static_cast<float>(a) + static_cast<float>(b));
}

struct GradientCase {
  ElementType type = ElementType::kFloat32;
  std::vector<std::byte> sources;
  std::vector<std::byte> destinations;  // before
  std::vector<std::byte> sums;          // the destinations afterwards
  std::vector<CopyCase::Row> rows;
  std::vector<double> squares;  // [rows], of the sources

  // The rows where the arenas lie at these addresses, which must be 16-byte aligned.
  std::vector<RowCopy> At(const std::byte* sources_at, std::byte* destinations_at) const {
    std::vector<RowCopy> result;
    for (const CopyCase::Row& row : rows) {
      result.push_back({.source = sources_at + row.source,
                        .destination = destinations_at + row.destination,
                        .num_bytes = row.num_bytes});
    }
    return result;
  }
};

// The squares of a row in the order that the header gives: units of 16 bytes go round 1024 lanes.
inline double PlainSquares(ElementType type, const std::byte* row, int64_t num_bytes) {
  std::vector<double> lanes(1024);
  const int64_t size = ElementBytes(type);
  for (int64_t at = 0; at < num_bytes; at += size) {
    const double value = Decode(type, row + at);
    lanes[static_cast<size_t>(at / 16 % 1024)] += value * value;
  }
  for (size_t left = lanes.size() / 2; left > 0; left /= 2) {
    for (size_t i = 0; i < left; ++i) lanes[i] += lanes[left + i];
  }
  return lanes[0];
}

// Sizes around a warp, a unit, a tile and the lanes of a sum; aligned and not; in random order.
// Values of very different size, so that every rounding shows.
inline GradientCase MakeGradientCase(ElementType type, uint64_t seed) {
  constexpr int64_t kRedZone = 64;
  const int64_t size = ElementBytes(type);
  std::mt19937_64 random(seed);
  GradientCase result{.type = type};
  int64_t sources = 0;
  int64_t destinations = kRedZone;
  struct Layout {
    int64_t source;
    int64_t destination;
    int64_t elements;
  };
  std::vector<Layout> layouts;
  for (const int64_t elements : {0, 1, 31, 32, 33, 1000}) {
    for (const auto& [source, destination] : {std::pair{0, 0}, {1, 0}, {0, 3}, {8, 8}, {2, 6}}) {
      layouts.push_back({source, destination, elements});
    }
  }
  layouts.push_back({0, 0, kCopyTileBytes / size + 5});
  layouts.push_back({2, 6, kCopyTileBytes / size});
  for (const Layout& layout : layouts) {
    const int64_t num_bytes = layout.elements * size;
    result.rows.push_back({.source = sources + layout.source,
                           .destination = destinations + layout.destination,
                           .num_bytes = num_bytes});
    const int64_t room = (num_bytes + kRedZone) / 16 * 16 + kRedZone;
    sources += room;
    destinations += room;
  }
  std::shuffle(result.rows.begin(), result.rows.end(), random);
  result.sources = RandomBytes(static_cast<size_t>(sources), random);
  result.destinations = RandomBytes(static_cast<size_t>(destinations), random);
  std::normal_distribution<double> normal;
  const auto draw = [&] {
    return std::ldexp(normal(random), static_cast<int>(random() % 24) - 12);
  };
  for (const CopyCase::Row& row : result.rows) {
    for (int64_t at = 0; at < row.num_bytes; at += size) {
      Encode(type, draw(), result.sources.data() + row.source + at);
      Encode(type, draw(), result.destinations.data() + row.destination + at);
    }
  }
  result.sums = result.destinations;
  for (const CopyCase::Row& row : result.rows) {
    const std::byte* source = result.sources.data() + row.source;
    std::byte* sum = result.sums.data() + row.destination;
    for (int64_t at = 0; at < row.num_bytes; at += size) {
      Encode(type, PlainSum(type, Decode(type, sum + at), Decode(type, source + at)), sum + at);
    }
    result.squares.push_back(PlainSquares(type, source, row.num_bytes));
  }
  return result;
}

}  // namespace eplb::cuda::testing

#endif  // EPLB_TESTS_CUDA_GRADIENT_CASE_H_
