#include "client/cli/wait.h"

#include <gmock/gmock.h>

#include "absl/time/clock.h"

#include "base/json_value.h"
#include "client/cli/commands.h"
#include "tests/client/cli/scripted_query.h"

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
       {"connected", "state=IDLE", "version>=4", "step>=12346", "balanced>=0.9", "balanced>=90%"}) {
    EXPECT_EQ(Ask(condition, now), Answer::kNotYet) << condition;
    EXPECT_EQ(Ask(condition, then), Answer::kMet) << condition;
  }
}

TEST(WaitConditionTest, ARunThatHasEndedMayBeReplacedButItsEndStays) {
  v1::JobStatus job = ExampleJob();
  EXPECT_EQ(Ask("finished", job), Answer::kNotYet);
  EXPECT_EQ(Ask("ended", job), Answer::kNotYet);
  job.set_ending(v1::RUN_ENDING_FAILED);
  job.set_state(v1::JOB_STATE_FAILED);
  EXPECT_EQ(Ask("finished", job), Answer::kNever);
  EXPECT_EQ(Ask("ended", job), Answer::kMet);
  EXPECT_EQ(Ask("state=FINISHED", job), Answer::kNever);
  for (const char* condition :
       {"connected", "state=IDLE", "state=LOST", "version>=4", "step>=12346", "balanced>=0.9"}) {
    EXPECT_EQ(Ask(condition, job), Answer::kNotYet) << condition << ": of a new run";
  }
  EXPECT_EQ(Ask("version>=3", job), Answer::kMet);
  EXPECT_EQ(Ask("state=FAILED", job), Answer::kMet);
  job.set_ending(v1::RUN_ENDING_FINISHED);
  job.set_state(v1::JOB_STATE_FINISHED);
  EXPECT_EQ(Ask("finished", job), Answer::kMet);
  EXPECT_EQ(Ask("state=FAILED", job), Answer::kNever);
  job.set_ending(v1::RUN_ENDING_LOST);  // its ranks may come back
  job.set_state(v1::JOB_STATE_LOST);
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

class WaitTest : public ExampleJobTest {
 protected:
  WaitOptions Options(const std::string& condition, const std::string& timeout = "1s",
                      Format format = Format::kTable) const {
    WaitOptions options = {.query = daemon_.Options(format), .condition = condition};
    options.query.timeout = timeout;
    return options;
  }
};

TEST_F(WaitTest, WhatIsTrueEndsItAtOnce) {
  const std::string output = TextOf(RunWait(Options("version>=3")));
  EXPECT_THAT(output, HasSubstr("train: version>=3 is true after "));
  const absl::StatusOr<wire::JsonValue> json =
      wire::ParseJson(RunWait(Options("version>=3", "1s", Format::kJson)).out);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*wire::GetInteger(*json, "version"), 3);
  EXPECT_EQ(*wire::GetString(*json, "condition"), "version>=3");
}

TEST_F(WaitTest, WhatDoesNotComeIsATimeoutThatTellsWhatIs) {
  const Output output = RunWait(Options("version>=4"));
  EXPECT_EQ(output.exit_code, kTimeout);
  EXPECT_EQ(output.out, "");
  EXPECT_THAT(output.message,
              HasSubstr("version>=4 is not true after 1s: job train is "
                        "PREPARING at step 12,345, version 3, balancedness measured "
                        "0.7500"));
}

// The second question ends after 5 s, the third has hardly time for an answer.
TEST_F(WaitTest, WhatWasSeenIsToldWhenTheDaemonNoLongerAnswers) {
  daemon_.answers = 1;
  WaitOptions options = Options("version>=4", "5600ms");
  options.job = kJob;
  const Output output = RunWait(options);
  EXPECT_EQ(output.exit_code, kTimeout);
  EXPECT_THAT(output.message, Says("version>=4 is not true after 5600ms: job train is PREPARING "
                                   "at step 12,345",
                                   "; then no answer from 127.0.0.1:"));
}

TEST_F(WaitTest, WhatCannotComeAnyMoreIsExit8) {
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_ending(v1::RUN_ENDING_FAILED);
  job.set_end_reason("rank 2 was lost");
  const Output output = RunWait(Options("finished", "1h"));
  EXPECT_EQ(output.exit_code, kConditionNotMet);
  EXPECT_EQ(output.message,
            "job train is FAILED (rank 2 was lost): finished can no longer become true");
}

TEST_F(WaitTest, ANewRunOfAnEndedJobIsWaitedFor) {
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.set_state(v1::JOB_STATE_FINISHED);
  job.set_ending(v1::RUN_ENDING_FINISHED);
  const Output output = RunWait(Options("connected"));
  EXPECT_EQ(output.exit_code, kTimeout);
  EXPECT_THAT(output.message, HasSubstr("connected is not true after 1s: job train is FINISHED"));
}

TEST_F(WaitTest, AJobThatHasNotComeIsWaitedFor) {
  daemon_.status.clear_jobs();
  const absl::Time begin = absl::Now();
  EXPECT_EQ(RunWait(Options("connected")).exit_code, kTimeout);
  EXPECT_GE(absl::Now() - begin, absl::Seconds(1) - kAskAgain);
  WaitOptions named = Options("connected");
  named.job = kJob;
  EXPECT_EQ(RunWait(named).exit_code, kTimeout);
}

TEST_F(WaitTest, NobodyThereIsUnreachableAndWrongWordsAreUsage) {
  WaitOptions options = Options("connected", "1h");
  options.query.endpoint = "unix:/nonexistent/eplbd.sock";
  EXPECT_EQ(RunWait(options).exit_code, kUnreachable);
  EXPECT_EQ(RunWait(Options("soon")).exit_code, kUsage);
  EXPECT_EQ(RunWait(Options("connected", "200h")).exit_code, kUsage);
  *daemon_.status.add_jobs() = HealthyJob();
  EXPECT_EQ(RunWait(Options("connected")).exit_code, kUsage) << "which of two";
}

v1::Plan EndedPlan(uint64_t number, v1::PlanResult result) {
  v1::Plan plan;
  plan.set_plan(number);
  plan.set_result(result);
  plan.set_reason("the predicted peak falls by 27 %");
  plan.set_asked_by("uid 1000 (alice)");
  return plan;
}

class RebalanceWaitTest : public WaitTest {
 protected:
  ChangeOptions Waiting(const std::string& timeout) const {
    return {.query = daemon_.Options(), .wait = true, .wait_timeout = timeout};
  }
};

TEST_F(RebalanceWaitTest, TheDecisionThatItAskedForIsTheAnswer) {
  daemon_.plans = {EndedPlan(6, v1::PLAN_RESULT_KEPT)};
  daemon_.decides = {EndedPlan(8, v1::PLAN_RESULT_KEPT),
                     EndedPlan(7, v1::PLAN_RESULT_COMMITTED)};  // 8 came later
  EXPECT_EQ(TextOf(RunRebalance(Waiting("10s"))),
            "plan 7 committed: the predicted peak falls by 27 %\n");
}

TEST_F(RebalanceWaitTest, ADecisionThatNobodyAskedForIsNotTheAnswer) {
  v1::Plan automatic = EndedPlan(7, v1::PLAN_RESULT_KEPT);
  automatic.clear_asked_by();
  daemon_.plans = {EndedPlan(6, v1::PLAN_RESULT_KEPT)};
  daemon_.decides = {EndedPlan(8, v1::PLAN_RESULT_COMMITTED), automatic};
  const std::string output = TextOf(RunRebalance(Waiting("10s")));
  EXPECT_THAT(output, HasSubstr("plan 8 committed"));
  daemon_.plans.clear();
  daemon_.decides = {automatic};
  EXPECT_EQ(RunRebalance(Waiting("300ms")).exit_code, kTimeout);
}

TEST_F(RebalanceWaitTest, ADecisionThatSwitchedNothingIsExit8) {
  daemon_.decides = {EndedPlan(1, v1::PLAN_RESULT_KEPT)};
  EXPECT_EQ(RunRebalance(Waiting("10s")).exit_code, kConditionNotMet);
}

TEST_F(RebalanceWaitTest, ADecisionWithoutAnEndIsATimeout) {
  daemon_.decides = {EndedPlan(1, v1::PLAN_RESULT_PROPOSED)};
  const Output output = RunRebalance(Waiting("300ms"));
  EXPECT_EQ(output.exit_code, kTimeout);
  EXPECT_THAT(output.message, HasSubstr("no end after 300ms: see eplbctl get plans --job train"));
}

}  // namespace

}  // namespace eplb::cli
