#include "placement/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace eplb {

namespace {

using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

LoadMatrix CountMatrix(int64_t a, int64_t b) {
  LoadMatrix counts(1, 2);
  counts << a, b;
  return counts;
}

RealMatrix Estimates(double a, double b) {
  RealMatrix estimates(1, 2);
  estimates << a, b;
  return estimates;
}

TEST(LoadTest, KeepsCountsExactlyUpToTheLargestSum) {
  const auto load = Load::FromCounts(CountMatrix(kMax - 1, 1));
  ASSERT_TRUE(load.ok()) << load.status();
  EXPECT_TRUE(load->is_counts());
  EXPECT_EQ(load->counts()(0, 0), kMax - 1);
  EXPECT_EQ(load->num_layers(), 1);
  EXPECT_EQ(load->num_experts(), 2);
}

TEST(LoadTest, RefusesASumThatOverflows) {
  const auto load = Load::FromCounts(CountMatrix(kMax, 1));
  EXPECT_EQ(load.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(load.status().message(), HasSubstr("layer 0 is above 2^63-1"));
  const double huge = std::numeric_limits<double>::max();
  EXPECT_THAT(Load::FromEstimates(Estimates(huge, huge)).status().message(),
              HasSubstr("layer 0 is above the range of double"));
}

TEST(LoadTest, NamesTheCellThatIsNegativeOrNotFinite) {
  EXPECT_THAT(Load::FromCounts(CountMatrix(0, -3)).status().message(),
              HasSubstr("layer 0 expert 1 is -3"));
  EXPECT_THAT(Load::FromEstimates(Estimates(-0.5, 0)).status().message(),
              HasSubstr("layer 0 expert 0 is -0.5"));
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(Load::FromEstimates(Estimates(0, bad)).status().message(),
                HasSubstr("layer 0 expert 1"));
  }
}

TEST(LoadTest, RefusesAnEmptyMatrix) {
  EXPECT_EQ(Load::FromCounts(LoadMatrix(0, 3)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Load::FromEstimates(RealMatrix(2, 0)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(LoadTest, RoundsCountsToFloatOnceAndNotThroughDouble) {
  // Floats near 2^60 are 2^37 apart. This count is just above a tie, and exactly on it once double
  // (256 apart) has dropped the 1.
  const int64_t count = (int64_t{1} << 60) + (int64_t{1} << 36) + 1;
  const auto load = Load::FromCounts(CountMatrix(count, 7));
  ASSERT_TRUE(load.ok());
  const auto floats = load->ToFloat();
  ASSERT_TRUE(floats.ok());
  EXPECT_EQ((*floats)(0, 0), static_cast<float>(count));
  EXPECT_NE((*floats)(0, 0), static_cast<float>(static_cast<double>(count)));
}

TEST(LoadTest, RefusesAnEstimateAboveTheRangeOfFloat) {
  const auto load = Load::FromEstimates(Estimates(1, 1e39));
  ASSERT_TRUE(load.ok());
  EXPECT_THAT(load->ToFloat().status().message(), HasSubstr("layer 0 expert 1 is 1e+39"));
}

TEST(LoadTest, EqualMeansSameKindShapeAndCells) {
  EXPECT_EQ(*Load::FromCounts(CountMatrix(1, 2)), *Load::FromCounts(CountMatrix(1, 2)));
  EXPECT_FALSE(*Load::FromCounts(CountMatrix(1, 2)) == *Load::FromCounts(CountMatrix(2, 1)));
  EXPECT_FALSE(*Load::FromCounts(CountMatrix(1, 2)) == *Load::FromEstimates(Estimates(1, 2)));
  EXPECT_FALSE(*Load::FromCounts(CountMatrix(1, 2)) == *Load::FromCounts(LoadMatrix::Ones(2, 2)));
}

Load Counts(int64_t a, int64_t b) { return *Load::FromCounts(CountMatrix(a, b)); }

TEST(LoadAverageTest, SumsOfCountsAreExact) {
  const Load first = Counts(int64_t{1} << 53, 0);
  const Load second = Counts(1, 2);
  const std::vector<const Load*> windows = {&first, &second};
  EXPECT_EQ(*CombineLoads(windows, {}), Counts((int64_t{1} << 53) + 1, 2));
  EXPECT_EQ(*CombineLoads(std::vector<const Load*>{&second}, 0.5), second);
}

TEST(LoadAverageTest, AnAverageWeighsTheOldestLeast) {
  const Load first = Counts(8, 0);
  const Load second = Counts(0, 8);
  const Load third = Counts(4, 0);
  const std::vector<const Load*> windows = {&first, &second, &third};
  const RealMatrix found = CombineLoads(windows, 0.75)->ToDouble();
  // 8, 6, 0.75 * 6 + 0.25 * 4; 0, 2, 1.5.
  EXPECT_DOUBLE_EQ(found(0, 0), 5.5);
  EXPECT_DOUBLE_EQ(found(0, 1), 1.5);
}

TEST(LoadAverageTest, StepsAreCombinedAsLoadsAre) {
  const std::vector<double> steps = {10, 20, 40};
  EXPECT_DOUBLE_EQ(CombineSteps(steps, {}), 70);
  EXPECT_DOUBLE_EQ(CombineSteps(steps, 0.5), 27.5);
  EXPECT_DOUBLE_EQ(CombineSteps(std::vector<double>{3}, 0.5), 3);
}

TEST(LoadAverageTest, WhatCannotBeCombinedIsRefused) {
  const Load large = Counts(1, INT64_MAX - 1);
  const Load small = Counts(0, 2);
  const Load other = *Load::FromCounts(LoadMatrix::Ones(1, 3));
  EXPECT_THAT(CombineLoads(std::vector{&large, &small}, {}).status().message(),
              HasSubstr("layer 0 expert 1 is above 2^63-1"));
  EXPECT_TRUE(CombineLoads(std::vector{&large, &small}, 0.5).ok());
  EXPECT_THAT(CombineLoads(std::vector{&small, &other}, {}).status().message(),
              HasSubstr("window 1 has 1 layers x 3 experts, window 0 has 1 x 2"));
  EXPECT_FALSE(CombineLoads({}, {}).ok());
}

}  // namespace

}  // namespace eplb
