#include "placement/load_average.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace eplb {
namespace {

using ::testing::HasSubstr;

Load Counts(int64_t a, int64_t b) {
  LoadMatrix counts(1, 2);
  counts << a, b;
  return *Load::FromCounts(counts);
}

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
