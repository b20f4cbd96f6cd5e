#include "cuda/checksum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <unordered_set>
#include <vector>

#include "cuda/kernels/checksum_body.h"

namespace eplb::cuda {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The definition, lane by lane from the last to the first.
uint64_t Reference(Bytes bytes) {
  uint64_t sum = ChecksumLength(bytes.size());
  bytes.resize((bytes.size() + 7) / 8 * 8);
  for (size_t lane = bytes.size() / 8; lane-- > 0;) {
    uint64_t word = 0;
    for (size_t i = 8; i-- > 0;) word = word << 8 | std::to_integer<uint64_t>(bytes[lane * 8 + i]);
    sum += ChecksumLane(word, lane);
  }
  return sum;
}

TEST(ChecksumTest, EqualsTheDefinitionAtEverySizeAndAlignment) {
  for (size_t size = 0; size <= 67; ++size) {
    const Bytes bytes = RandomBytes(size, size);
    ASSERT_EQ(ChecksumOnHost(bytes), Reference(bytes)) << size;
    Bytes shifted(size + 8);
    for (size_t offset = 1; offset < 8; ++offset) {
      std::copy(bytes.begin(), bytes.end(), shifted.begin() + static_cast<std::ptrdiff_t>(offset));
      ASSERT_EQ(ChecksumOnHost(std::span(shifted).subspan(offset, size)), Reference(bytes))
          << size << " at offset " << offset;
    }
  }
}

TEST(ChecksumTest, ValueIsFixed) {
  // Sum that a rank on another build must find for the bytes 0..19.
  Bytes bytes(20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i);
  EXPECT_EQ(ChecksumOnHost(bytes), 0x0616cecca55f9b26U);
}

// A faulty line of a bus changes two lanes in the same way: their sums must not cancel. What a
// change of both halves does to a lane depends on the lane.
TEST(ChecksumTest, ChangesThatBothHalvesShareDoNotCancel) {
  constexpr size_t kSamples = size_t{1} << 16;
  for (const uint64_t change : {0x8000000080000000U, 0x4000000040000000U, 0x0080000000800000U,
                                0x8000800080008000U, 0xffffffffffffffffU}) {
    std::mt19937_64 random(change);
    std::unordered_set<uint64_t> differences;
    for (size_t sample = 0; sample < kSamples; ++sample) {
      const uint64_t word = random();
      differences.insert(ChecksumLane(word ^ change, sample) - ChecksumLane(word, sample));
    }
    EXPECT_EQ(differences.size(), kSamples) << std::hex << change;
  }
}

// Holds for word and index: each bit of the lane's sum changes half of the time.
TEST(ChecksumTest, EveryBitMovesEveryBit) {
  constexpr int kSamples = 2000;
  constexpr int kFar = 150;  // almost seven standard deviations of sqrt(kSamples) / 2
  std::mt19937_64 random(6);
  std::vector<std::array<int, 64>> changes(128);
  for (int sample = 0; sample < kSamples; ++sample) {
    const uint64_t word = random();
    const uint64_t index = random() >> 24;  // rows have fewer lanes
    const uint64_t lane = ChecksumLane(word, index);
    for (size_t bit = 0; bit < 64 + 40; ++bit) {
      const uint64_t other = bit < 64 ? ChecksumLane(word ^ uint64_t{1} << bit, index)
                                      : ChecksumLane(word, index ^ uint64_t{1} << (bit - 64));
      for (size_t moved = 0; moved < 64; ++moved)
        changes[bit][moved] += (lane ^ other) >> moved & 1;
    }
  }
  for (size_t bit = 0; bit < 64 + 40; ++bit) {
    for (size_t moved = 0; moved < 64; ++moved) {
      ASSERT_NEAR(changes[bit][moved], kSamples / 2, kFar) << bit << " moves " << moved;
    }
  }
}

TEST(ChecksumTest, EverySwapOfTwoLanesIsFound) {
  Bytes bytes = RandomBytes(512, 2);
  const uint64_t sum = ChecksumOnHost(bytes);
  const auto lane = [&](size_t index) {
    return bytes.begin() + static_cast<std::ptrdiff_t>(8 * index);
  };
  for (size_t a = 0; a < 64; ++a) {
    for (size_t b = a + 1; b < 64; ++b) {
      std::swap_ranges(lane(a), lane(a) + 8, lane(b));
      ASSERT_NE(ChecksumOnHost(bytes), sum) << a << " and " << b;
      std::swap_ranges(lane(a), lane(a) + 8, lane(b));
    }
  }
}

TEST(ChecksumTest, ShiftsAreFound) {
  Bytes bytes = RandomBytes(256, 3);
  std::set<uint64_t> sums;
  for (size_t shift = 0; shift < bytes.size(); ++shift) {
    ASSERT_TRUE(sums.insert(ChecksumOnHost(bytes)).second) << "shift " << shift;
    std::rotate(bytes.begin(), bytes.begin() + 1, bytes.end());
  }
}

TEST(ChecksumTest, TruncationIsFoundEvenOfZeros) {
  const Bytes zeros(300);
  const Bytes bytes = RandomBytes(300, 4);
  std::set<uint64_t> sums;
  for (size_t size = 0; size <= 300; ++size) {
    ASSERT_TRUE(sums.insert(ChecksumOnHost(std::span(zeros).first(size))).second) << size;
    if (size == 0) continue;
    ASSERT_TRUE(sums.insert(ChecksumOnHost(std::span(bytes).first(size))).second) << size;
  }
}

}  // namespace
}  // namespace eplb::cuda
