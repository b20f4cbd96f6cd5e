#include "server/runner/rate_limit.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

TEST(RateLimitTest, ABurstOfTwiceTheRateIsLetThroughAndThenTheRate) {
  const absl::Time start = absl::UnixEpoch();
  RateLimit limit(10, start);
  int taken = 0;
  for (int i = 0; i < 100; ++i) taken += limit.Take(start) ? 1 : 0;
  EXPECT_EQ(taken, 20);
  taken = 0;
  for (int i = 0; i < 100; ++i) taken += limit.Take(start + absl::Seconds(1)) ? 1 : 0;
  EXPECT_EQ(taken, 10);
  taken = 0;
  for (int i = 0; i < 100; ++i) taken += limit.Take(start + absl::Hours(1)) ? 1 : 0;
  EXPECT_EQ(taken, 20);
}

TEST(RateLimitTest, ALongerBurstIsLetThroughOnce) {
  const absl::Time start = absl::UnixEpoch();
  RateLimit limit(10, start, absl::Seconds(20));
  int taken = 0;
  for (int i = 0; i < 300; ++i) taken += limit.Take(start) ? 1 : 0;
  EXPECT_EQ(taken, 200);
  EXPECT_FALSE(limit.Take(start));
}

}  // namespace
}  // namespace eplb
