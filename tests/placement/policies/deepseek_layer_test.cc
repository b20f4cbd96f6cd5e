#include "placement/policies/deepseek_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/plain_deepseek.h"

namespace eplb {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint64_t kTorchOrderSeed = 11;
constexpr size_t kLongest = 1100;

TEST(OrderedKeyTest, KeysRiseWithTheValues) {
  const std::vector<float> rising = {-kInfinity, -3e38F, -1.0F,     -1e-45F, 0.0F,      1e-45F,
                                     1e-38F,     1.0F,   1.000001F, 3e38F,   kInfinity, NAN};
  for (size_t i = 1; i < rising.size(); ++i) {
    EXPECT_LT(OrderedKey(rising[i - 1]), OrderedKey(rising[i])) << rising[i];
  }
}

TEST(OrderedKeyTest, BothZerosAreEqualAndSoIsEveryNan) {
  EXPECT_EQ(OrderedKey(-0.0F), OrderedKey(0.0F));
  EXPECT_EQ(OrderedKey(-NAN), OrderedKey(NAN));
}

std::vector<float> DrawRow(std::mt19937_64& random, size_t size, uint64_t num_values) {
  std::vector<float> row;
  for (size_t i = 0; i < size; ++i) {
    row.push_back(static_cast<float>(random() % num_values) * 0.37F - 3);
  }
  if (size > 20 && random() % 3 == 0) {
    row[3] = row[size - 1] = NAN;
    row[7] = -kInfinity;
    row[9] = -0.0F;
    row[8] = 0.0F;
  }
  return row;
}

class DescendingOrderTest : public ::testing::TestWithParam<TieBreak> {};

TEST_P(DescendingOrderTest, RowsOfEveryLengthComeOutAsTheReferencesSort) {
  std::mt19937_64 random(kTorchOrderSeed);
  DescendingOrder order(GetParam(), kLongest);
  std::vector<size_t> sizes = {0, 1, 2, 15, 16, 17, 18, 47, 48, 49, 72, 288, 512, kLongest};
  for (size_t i = 0; i < 60; ++i) sizes.push_back(random() % 300);
  for (const size_t size : sizes) {
    for (const uint64_t num_values : {uint64_t{1}, uint64_t{3}, uint64_t{40}, uint64_t{1} << 40}) {
      const std::vector<float> row = DrawRow(random, size, num_values);
      const auto sorted = order.Sort(row);
      std::vector<int64_t> expected(size);
      eplb_order(row.data(), static_cast<int>(size), expected.data(),
                 GetParam() == TieBreak::kStable ? 0 : 1);
      ASSERT_EQ(std::vector<int64_t>(sorted.begin(), sorted.end()), expected)
          << "seed " << kTorchOrderSeed << ", " << size << " values, " << num_values
          << " different";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(BothOrders, DescendingOrderTest,
                         ::testing::Values(TieBreak::kStable, TieBreak::kCompat));

TEST(TieBreakTest, TheOrdersDifferOnATiedRowOfSeventeen) {
  const std::vector<float> row(17, 1.0F);
  DescendingOrder stable(TieBreak::kStable, row.size());
  DescendingOrder compat(TieBreak::kCompat, row.size());
  const auto a = stable.Sort(row);
  const auto b = compat.Sort(row);
  EXPECT_FALSE(std::equal(a.begin(), a.end(), b.begin()));
}

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
              std::bit_cast<uint32_t>(eplb_rowsum(row.data(), std::ssize(row))))
        << "seed " << kTorchSumSeed << " size " << size;
  }
}

TEST(TorchSumTest, ThirtyTwoValuesAreAddedLaneByLane) {
  const std::vector<float> x = DrawRow(32);
  float sum = 0;
  for (size_t ep_group = 0; ep_group < 8; ++ep_group) {
    sum += ((x[ep_group] + x[ep_group + 8]) + x[ep_group + 16]) + x[ep_group + 24];
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
