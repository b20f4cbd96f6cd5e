#include "server/descriptor_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kWanted = 20000;  // the default of limits.max_sessions

TEST(DescriptorPlanTest, AllSessionsFitAHighLimit) {
  const DescriptorPlan plan = PlanDescriptors(524288, kWanted);
  EXPECT_EQ(plan.max_sessions, kWanted);
  EXPECT_EQ(plan.warning, "");
  EXPECT_EQ(plan.no_more_sessions, "limits.max_sessions = 20000 streams are open");
}

TEST(DescriptorPlanTest, EightyFilesHaveRoomForTwentyStreamsAndTheWarningSaysWhatToDo) {
  const DescriptorPlan plan = PlanDescriptors(80, kWanted);
  EXPECT_EQ(plan.max_sessions, 20);
  EXPECT_THAT(plan.warning, HasSubstr("limits.max_sessions is 20000, but the limit of 80 open "
                                      "files has room for 20 streams: raise the limit to "));
  EXPECT_THAT(plan.no_more_sessions, HasSubstr("20 streams are open, and the daemon's limit of 80 "
                                               "open files has room for no more"));
}

TEST(DescriptorPlanTest, TheLimitThatTheWarningAsksForIsEnough) {
  EXPECT_EQ(PlanDescriptors(kWanted + 816, kWanted).warning, "");
  EXPECT_THAT(PlanDescriptors(80, kWanted).warning, HasSubstr("raise the limit to 20816 "));
}

TEST(DescriptorPlanTest, SessionsNeverTakeWhatHttpAndQueriesNeed) {
  for (int64_t limit = 65; limit < 30000; ++limit) {
    const DescriptorPlan plan = PlanDescriptors(limit, kWanted);
    ASSERT_GE(plan.max_sessions, 1) << limit;
    ASSERT_LT(plan.max_sessions, plan.tcp_below) << limit;
    ASSERT_LE(plan.tcp_below, plan.unix_below) << limit;
    // Three stages of a connection.
    const auto http = static_cast<int64_t>(plan.http_connections);
    ASSERT_LE(plan.unix_below + 3 * http, limit) << limit;
  }
}

TEST(DescriptorPlanTest, TheSoftLimitIsRaisedToTheHardOne) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  if (before.rlim_max < 256 || before.rlim_max > INT32_MAX) GTEST_SKIP() << "nothing to raise";
  rlimit low = before;
  low.rlim_cur = before.rlim_max / 2;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_LT(DescriptorLimit(), static_cast<int64_t>(before.rlim_max));
  EXPECT_EQ(RaiseDescriptorLimit(), static_cast<int64_t>(before.rlim_max));
  EXPECT_EQ(DescriptorLimit(), static_cast<int64_t>(before.rlim_max));
  rlimit after{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

}  // namespace
}  // namespace eplb
