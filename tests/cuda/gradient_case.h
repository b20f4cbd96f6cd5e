// Rows of gradients of all sizes and alignments in two arenas with red zones, and what adding and
// squaring them must give, worked out in plain float64: for the host and the device test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
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
  // The value after the largest would be as far from it as the one before.
  const double low = Magnitude(format, below);
  const double high = below + 1 == InfinityOf(format) ? 2 * low - Magnitude(format, below - 1)
                                                      : Magnitude(format, below + 1);
  const bool up = value - low > high - value || (value - low == high - value && (below & 1) == 1);
  return static_cast<uint16_t>(sign | (below + (up ? 1 : 0)));
}

inline double HalfwordValue(const Halfword& format, uint16_t bits) {
  const int magnitude = bits & 0x7fff;
  double value = Magnitude(format, magnitude);
  if (magnitude == InfinityOf(format)) value = std::numeric_limits<double>::infinity();
  if (magnitude > InfinityOf(format)) value = std::numeric_limits<double>::quiet_NaN();
  return (bits & 0x8000) != 0 ? -value : value;
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
  return HalfwordValue(format, bits);
}

// Rounds `value` to the type, to nearest; what is not a number becomes all bits but the sign.
inline void Encode(ElementType type, double value, std::byte* at) {
  if (std::isnan(value)) {
    std::memset(at, 0xff, static_cast<size_t>(ElementBytes(type)));
    at[ElementBytes(type) - 1] = std::byte{0x7f};
  } else if (type == ElementType::kFloat64) {
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

// Two arrays of equal size whose elements are added.
struct Addends {
  std::vector<std::byte> left;
  std::vector<std::byte> right;
};

// Bits of values that are hard to add: zeros, subnormals, ties, what overflows, infinities and NaNs
// with all kinds of bits.
inline std::vector<uint64_t> HardBits(ElementType type) {
  if (type == ElementType::kFloat64) {
    return {0x0000000000000000, 0x8000000000000000, 1,
            0x800fffffffffffff, 0x0010000000000000, 0x3ff0000000000000,
            0xbff0000000000001, 0x3ca0000000000000, 0x7fefffffffffffff,
            0xffefffffffffffff, 0x7c90000000000000, 0x7ff0000000000000,
            0xfff0000000000000, 0x7ff8000000000000, 0xfff0000000000001,
            0x7ff4000000000005, 0xffffffffffffffff};
  }
  if (type == ElementType::kFloat32) {
    return {0x00000000, 0x80000000, 1,          0x807fffff, 0x00800000, 0x3f800000,
            0xbf800001, 0x33800000, 0x7f7fffff, 0xff7fffff, 0x73000000, 0x7f800000,
            0xff800000, 0x7fc00000, 0xff800001, 0x7fa00005, 0xffffffff};
  }
  const Halfword format = type == ElementType::kFloat16 ? kHalf : kBrain;
  const auto infinity = static_cast<uint64_t>(InfinityOf(format));
  const uint64_t least_normal = uint64_t{1} << format.fraction_bits;
  const int max_exponent = 1 - format.min_exponent;
  // Half of what the last bit of the largest is worth.
  const uint64_t tie = Nearest(format, std::ldexp(1, max_exponent - format.fraction_bits - 1));
  const uint64_t one = Nearest(format, 1);
  return {0,
          0x8000,
          1,
          0x8000 | (least_normal - 1),
          least_normal,
          one,
          0x8001 + one,
          infinity - 1,
          0x8000 | (infinity - 1),
          tie,
          tie - 1,
          infinity,
          0x8000 | infinity,
          infinity | least_normal / 2,
          0x8001 | infinity,
          0xffff};
}

// Each hard value and each other; of 16-bit types each hard value and all there are.
inline Addends MakeAddends(ElementType type) {
  const std::vector<uint64_t> hard = HardBits(type);
  std::vector<uint64_t> others = hard;
  if (ElementBytes(type) == 2) {
    others.resize(0x10000);
    std::iota(others.begin(), others.end(), 0);
  }
  const auto size = static_cast<size_t>(ElementBytes(type));
  Addends result;
  result.left.resize(hard.size() * others.size() * size);
  result.right.resize(result.left.size());
  size_t at = 0;
  for (const uint64_t left : hard) {
    for (const uint64_t right : others) {
      std::memcpy(result.left.data() + at, &left, size);
      std::memcpy(result.right.data() + at, &right, size);
      at += size;
    }
  }
  return result;
}

struct GradientCase {
  ElementType type = ElementType::kFloat32;
  std::vector<std::byte> sources;
  std::vector<std::byte> destinations;  // before
  std::vector<std::byte> sums;          // the destinations afterwards
  std::vector<CopyCase::Row> rows;
  std::vector<double> squares;  // [rows], squares of the sources

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

// The squares of a row in the order that the header gives: at most 64 parts of whole rounds, at
// least two; units of 16 bytes go round 256 lanes, 8 times a round.
inline double PlainSquares(ElementType type, const std::byte* row, int64_t num_bytes) {
  constexpr int64_t kRoundBytes = int64_t{256} * 8 * 16;
  int64_t part_bytes = 2 * kRoundBytes;
  while (64 * part_bytes < num_bytes) part_bytes += kRoundBytes;
  const int64_t size = ElementBytes(type);
  double sum = 0;
  for (int64_t begin = 0; begin < num_bytes; begin += part_bytes) {
    std::vector<double> lanes(256);
    for (int64_t at = begin; at < std::min(begin + part_bytes, num_bytes); at += size) {
      const double value = Decode(type, row + at);
      lanes[static_cast<size_t>((at - begin) / 16 % 256)] += value * value;
    }
    for (size_t left = lanes.size() / 2; left > 0; left /= 2) {
      for (size_t i = 0; i < left; ++i) lanes[i] += lanes[left + i];
    }
    sum += lanes[0];
  }
  return sum;
}

// Rows of several parts, at and beside the border of a part and of 64 parts, aligned and not.
struct LongRows {
  std::vector<std::byte> bytes;
  std::vector<CopyCase::Row> rows;

  // Rows at this address, which must be 16-byte aligned.
  std::vector<RowCopy> At(const std::byte* address) const {
    std::vector<RowCopy> result;
    for (const CopyCase::Row& row : rows) {
      result.push_back({.source = address + row.source, .num_bytes = row.num_bytes});
    }
    return result;
  }
};

inline LongRows MakeLongRows(ElementType type, uint64_t seed) {
  constexpr int64_t kPart = int64_t{64} * 1024;
  const int64_t size = ElementBytes(type);
  std::mt19937_64 random(seed);
  LongRows result;
  int64_t end = 0;
  for (const auto& [num_bytes, misaligned] : {std::pair{kPart, int64_t{0}},
                                              {kPart + size, 0},
                                              {3 * kPart - size, size},
                                              {3 * kPart, 8},
                                              {5 * kPart / 2, 0},
                                              {kPart * 64 - size, 0},
                                              {kPart * 64, 0},
                                              {kPart * 64 + size, 0}}) {
    result.rows.push_back({.source = end + misaligned, .num_bytes = num_bytes});
    end = (end + misaligned + num_bytes + 15) / 16 * 16;
  }
  result.bytes.resize(static_cast<size_t>(end));
  std::normal_distribution<double> normal;
  std::vector<std::byte> drawn(static_cast<size_t>(1009 * size));  // prime: it meets all lanes
  for (size_t at = 0; at < drawn.size(); at += static_cast<size_t>(size)) {
    Encode(type, normal(random), drawn.data() + at);
  }
  for (const CopyCase::Row& row : result.rows) {
    for (int64_t at = 0; at < row.num_bytes; at += std::ssize(drawn)) {
      std::memcpy(result.bytes.data() + row.source + at, drawn.data(),
                  static_cast<size_t>(std::min(std::ssize(drawn), row.num_bytes - at)));
    }
  }
  return result;
}

// Sizes around a warp, a unit and a tile; aligned and not; in random order.
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
    for (const auto& [source, destination] :
         {std::pair{0, 0}, {1, 0}, {0, 3}, {8, 8}, {2, 2}, {3, 3}, {4, 8}, {2, 6}}) {
      layouts.push_back({source, destination, elements});
    }
  }
  layouts.push_back({0, 0, kCopyTileBytes / size + 5});
  layouts.push_back({2, 6, kCopyTileBytes / size});
  layouts.push_back({4, 4, kCopyTileBytes / size + 9});
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
