#include "server/background/fair_share.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

const absl::Time kStart = absl::UnixEpoch();

TEST(FairShareTest, WhoUsedNothingHasUsedNothing) { EXPECT_EQ(FairShare().Used("a", kStart), 0); }

TEST(FairShareTest, UsesAddUpByJob) {
  FairShare share;
  share.Spend("a", absl::Seconds(2), kStart);
  share.Spend("a", absl::Seconds(3), kStart);
  share.Spend("b", absl::Seconds(1), kStart);
  EXPECT_EQ(share.Used("a", kStart), 5);
  EXPECT_EQ(share.Used("b", kStart), 1);
}

TEST(FairShareTest, ASecondCountsHalfAfterTheHalfLife) {
  FairShare share;
  share.Spend("a", absl::Seconds(8), kStart);
  EXPECT_DOUBLE_EQ(share.Used("a", kStart + FairShare::kHalfLife), 4);
  share.Spend("a", absl::Seconds(1), kStart + FairShare::kHalfLife);
  EXPECT_DOUBLE_EQ(share.Used("a", kStart + 2 * FairShare::kHalfLife), 2.5);
}

}  // namespace
}  // namespace eplb
