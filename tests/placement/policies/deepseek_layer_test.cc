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
              std::bit_cast<uint32_t>(eplb_rowsum(row.data(), static_cast<int64_t>(size))))
        << "seed " << kTorchSumSeed << " size " << size;
  }
}

}  // namespace

}  // namespace eplb
