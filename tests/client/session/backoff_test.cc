#include "client/session/backoff.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

TEST(BackoffTest, RangeDoublesUpToTheLongest) {
  const BackoffOptions options;
  EXPECT_EQ(BackoffDelay(options, 0, 0.5), absl::Milliseconds(100));
  EXPECT_EQ(BackoffDelay(options, 1, 0.5), absl::Milliseconds(200));
  EXPECT_EQ(BackoffDelay(options, 7, 0.5), absl::Milliseconds(12'800));
  EXPECT_EQ(BackoffDelay(options, 8, 0.5), absl::Seconds(15));
  EXPECT_EQ(BackoffDelay(options, 1 << 30, 0.5), absl::Seconds(15));
}

TEST(BackoffTest, ASmallJobWaitsForSecondsALargeOneForHalfAMinute) {
  EXPECT_EQ(BackoffFor(8).longest, absl::Seconds(2));
  EXPECT_EQ(BackoffFor(1000).longest, absl::Seconds(10));
  EXPECT_EQ(BackoffFor(16384).longest, absl::Seconds(30));
  EXPECT_EQ(BackoffFor(8).refused, absl::Seconds(30));
}

TEST(BackoffTest, JitterIsFull) {
  EXPECT_EQ(BackoffDelay({}, 5, 0), absl::ZeroDuration());
  EXPECT_LT(BackoffDelay({}, 20, 0.999), absl::Seconds(30));
}

}  // namespace
}  // namespace eplb
