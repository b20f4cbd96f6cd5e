#include "base/wait_check.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"

namespace eplb {
namespace {

TEST(WaitCheckTest, RunsAfterItsTimeOrAtOnceAndNeverAfterItFailed) {
  EXPECT_TRUE(CheckWait(/*now=*/true).ok());  // without one
  int runs = 0;
  {
    const WaitCheck check(
        [&runs] { return ++runs < 3 ? absl::OkStatus() : absl::CancelledError("stop"); });
    EXPECT_TRUE(CheckWait().ok());
    EXPECT_EQ(runs, 0);
    EXPECT_TRUE(CheckWait(/*now=*/true).ok());
    absl::SleepFor(kBetweenWaitChecks);
    EXPECT_TRUE(CheckWait().ok());
    EXPECT_EQ(runs, 2);
    std::thread([&runs] {
      EXPECT_TRUE(CheckWait(/*now=*/true).ok());
      EXPECT_EQ(runs, 2);
    }).join();
    for (const bool now : {true, false, true}) {
      EXPECT_EQ(CheckWait(now), absl::CancelledError("stop"));
      EXPECT_EQ(runs, 3);
    }
  }
  EXPECT_TRUE(CheckWait(/*now=*/true).ok());
}

}  // namespace
}  // namespace eplb
