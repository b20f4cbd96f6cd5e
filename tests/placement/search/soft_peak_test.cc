#include "placement/search/soft_peak.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace eplb {
namespace {

TEST(SoftPeakTest, EqualLoadsAreAboveThePeakByTheirNumber) {
  const std::vector<double> loads(8, 100);
  EXPECT_NEAR(SoftPeak(loads, 100), 100 + SoftnessOf(100, 100) * std::log(8), 1e-9);
}

TEST(SoftPeakTest, OneLoadIsItself) { EXPECT_EQ(SoftPeak(std::vector<double>{7}, 3), 7); }

TEST(SoftPeakTest, GpusNearTheTopCountAndColdOnesDoNot) {
  const double alone = SoftPeak(std::vector<double>{105, 100, 95}, 100);
  EXPECT_GT(SoftPeak(std::vector<double>{105, 104, 91}, 100), alone);
  EXPECT_NEAR(SoftPeak(std::vector<double>{105, 0, 0}, 100), 105, 1e-6);
}

TEST(SoftPeakTest, LoadsFarAboveTheScaleAreFinite) {
  const double soft = SoftPeak(std::vector<double>{1e18, 0, 0, 0}, 1);
  EXPECT_GE(soft, 1e18);
  EXPECT_LE(soft, 1e18 + SoftnessOf(1e18, 1) * std::log(4));
}

TEST(SoftPeakTest, SoftnessGrowsWithTheDistanceFromTheScale) {
  EXPECT_EQ(SoftnessOf(100, 100), SoftnessOf(101, 100));
  EXPECT_GT(SoftnessOf(200, 100), SoftnessOf(150, 100));
}

}  // namespace
}  // namespace eplb
