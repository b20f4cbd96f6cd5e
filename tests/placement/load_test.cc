#include "placement/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

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

}  // namespace
}  // namespace eplb
