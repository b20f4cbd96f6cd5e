#include "placement/policies/torch_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/reference_deepseek.h"

namespace eplb {
namespace {

constexpr uint64_t kTorchSumSeed = 5;

// Values whose sums round, so that another order of additions shows.
std::vector<float> DrawRow(size_t size) {
  std::mt19937_64 random(kTorchSumSeed + size);
  std::vector<float> row(size);
  for (float& value : row) value = static_cast<float>(random() >> (20 + random() % 20));
  return row;
}

TEST(TorchSumTest, EveryLengthIsAddedInTheReferencesOrder) {
  std::vector<size_t> sizes(700);
  std::iota(sizes.begin(), sizes.end(), 0);
  // The cascade's levels are flushed every 16 and 256 blocks of 32; 2^20 blocks widen the step.
  sizes.insert(sizes.end(), {1024, 4096, 8191, 8192, 8193, 20000, 131072, 140001});
  for (const size_t size : sizes) {
    const std::vector<float> row = DrawRow(size);
    ASSERT_EQ(std::bit_cast<uint32_t>(TorchSum(row)),
              std::bit_cast<uint32_t>(testing::ReferenceSum(row)))
        << "seed " << kTorchSumSeed << " size " << size;
  }
}

TEST(TorchSumTest, ThirtyTwoValuesAreAddedLaneByLane) {
  const std::vector<float> x = DrawRow(32);
  float sum = 0;
  for (size_t lane = 0; lane < 8; ++lane) {
    sum += ((x[lane] + x[lane + 8]) + x[lane + 16]) + x[lane + 24];
  }
  EXPECT_EQ(TorchSum(x), sum);
  EXPECT_NE(sum, std::accumulate(x.begin(), x.end(), 0.0F));  // the order does matter here
}

TEST(TorchSumTest, NanAndInfinityPropagate) {
  std::vector<float> row(40, 1.0F);
  row[33] = INFINITY;
  EXPECT_EQ(TorchSum(row), INFINITY);
  row[2] = -INFINITY;
  EXPECT_TRUE(std::isnan(TorchSum(row)));
}

}  // namespace
}  // namespace eplb
