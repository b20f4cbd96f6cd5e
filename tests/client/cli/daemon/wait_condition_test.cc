#include "client/cli/daemon/wait_condition.h"

#include <gmock/gmock.h>

#include "tests/client/cli/daemon/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using Answer = WaitCondition::Answer;

Answer Ask(const std::string& condition, const v1::JobStatus& job) {
  return WaitCondition::Parse(condition)->Ask(job);
}

TEST(WaitConditionTest, EachConditionIsMetByItsField) {
  const v1::JobStatus now = ExampleJob();  // PREPARING, version 3, step 12345, 7 of 8, 0.75
  v1::JobStatus then = HealthyJob();       // IDLE, 1 of 1
  then.set_version(4);
  then.set_step(12346);
  then.set_balancedness(0.9);
  for (const char* condition :
       {"connected", "state=IDLE", "version>=4", "step>=12346", "balanced>=0.9"}) {
    EXPECT_EQ(Ask(condition, now), Answer::kNotYet) << condition;
    EXPECT_EQ(Ask(condition, then), Answer::kMet) << condition;
  }
}

TEST(WaitConditionTest, ARunThatHasEndedMayBeReplacedButItsEndStays) {
  v1::JobStatus job = ExampleJob();
  EXPECT_EQ(Ask("finished", job), Answer::kNotYet);
  EXPECT_EQ(Ask("ended", job), Answer::kNotYet);
  job.set_ending("failed");
  job.set_state("FAILED");
  EXPECT_EQ(Ask("finished", job), Answer::kNever);
  EXPECT_EQ(Ask("ended", job), Answer::kMet);
  EXPECT_EQ(Ask("state=FINISHED", job), Answer::kNever);
  for (const char* condition :
       {"connected", "state=IDLE", "state=LOST", "version>=4", "step>=12346", "balanced>=0.9"}) {
    EXPECT_EQ(Ask(condition, job), Answer::kNotYet) << condition << ": of a new launch";
  }
  EXPECT_EQ(Ask("version>=3", job), Answer::kMet);
  EXPECT_EQ(Ask("state=FAILED", job), Answer::kMet);
  job.set_ending("finished");
  job.set_state("FINISHED");
  EXPECT_EQ(Ask("finished", job), Answer::kMet);
  EXPECT_EQ(Ask("state=FAILED", job), Answer::kNever);
  job.set_ending("lost");  // its ranks may come back
  job.set_state("LOST");
  EXPECT_EQ(Ask("finished", job), Answer::kNotYet);
  EXPECT_EQ(Ask("ended", job), Answer::kNotYet);
}

TEST(WaitConditionTest, WhatIsNoConditionIsRefusedWithTheOnesThereAre) {
  const auto error = [](const std::string& text) {
    return std::string(WaitCondition::Parse(text).status().message());
  };
  for (const char* bad : {"", "idle", "versions>=3", "state", "balanced=1", "version>3"}) {
    EXPECT_THAT(error(bad), HasSubstr("expected connected, finished, ended, state=NAME")) << bad;
  }
  for (const char* bad : {"version>=", "version>=-1", "step>=x"}) {
    EXPECT_THAT(error(bad), HasSubstr("expected a whole number")) << bad;
  }
  for (const char* bad : {"balanced>=0", "balanced>=1.01", "balanced>=nan", "balanced>="}) {
    EXPECT_THAT(error(bad), HasSubstr("at most 1")) << bad;
  }
  EXPECT_THAT(error("state=IDEL"), HasSubstr("did you mean IDLE?"));
}

}  // namespace
}  // namespace eplb::cli
