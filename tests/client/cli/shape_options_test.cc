#include "client/cli/shape_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace eplb::cli {

namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

TEST(BoundGapTest, ALayerWithoutLoadHasNoGapAndIsInNoMean) {
  const auto gaps = GapsToBounds({12, 0, 10}, {10, 0, 10});
  ASSERT_TRUE(gaps.ok()) << gaps.status();
  EXPECT_THAT(gaps->gaps, ElementsAre(Optional(DoubleEq(12.0 / 10 - 1)), std::nullopt, 0));
  EXPECT_THAT(gaps->mean, Optional(DoubleEq(0.1)));
  EXPECT_THAT(gaps->max, Optional(DoubleEq(0.2)));
  const auto idle = GapsToBounds({0, 0}, {0, 0});
  EXPECT_EQ(idle->mean, std::nullopt);
  EXPECT_EQ(idle->max, std::nullopt);
}

TEST(BoundGapTest, RoundingAboveThePeakIsLoweredToIt) {
  const auto gaps = GapsToBounds({10, 5e-324}, {10 * (1 + 1e-12), 1e-323});
  ASSERT_TRUE(gaps.ok()) << gaps.status();
  EXPECT_THAT(gaps->bounds, ElementsAre(10, 5e-324));
  EXPECT_THAT(gaps->gaps, ElementsAre(Optional(0), Optional(0)));
}

TEST(BoundGapTest, ABoundAboveThePeakIsAnInternalError) {
  for (const double bound : {10 * (1 + 1e-8), 11.0}) {
    const auto gaps = GapsToBounds({3, 10}, {2, bound});
    EXPECT_EQ(gaps.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(gaps.status().message(), HasSubstr("layer 1: the proved bound"));
  }
  EXPECT_FALSE(GapsToBounds({0}, {1}).ok());
}

}  // namespace

}  // namespace eplb::cli
