#include "client/cli/health_checks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::AllOf;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using Result = Check::Result;

wire::PlacementBody Body() {
  return {.version = 3, .digest = DigestOf(ExampleAfter()), .placement = ExampleAfter()};
}

Check Find(const std::vector<Check>& checks, const std::string& name) {
  const auto found = std::find_if(checks.begin(), checks.end(),
                                  [&name](const Check& check) { return check.name == name; });
  return found == checks.end() ? Check{.name = "missing", .result = Result::kFailed} : *found;
}

class ChecksTest : public ::testing::Test {
 protected:
  Check One(const std::string& name, const v1::ListPlansResponse& plans = {}) const {
    return Find(CheckJob(job_, Body(), plans), name);
  }

  v1::JobStatus job_ = HealthyJob();
};

template <class Detail>
auto Is(Result result, const Detail& detail) {
  return AllOf(Field("result", &Check::result, result), Field("detail", &Check::detail, detail));
}

TEST_F(ChecksTest, AHealthyJobPassesAll) {
  for (const Check& check : CheckJob(job_, Body(), {})) {
    EXPECT_EQ(check.result, Result::kOk) << check.name << ": " << check.detail;
  }
}

TEST_F(ChecksTest, AnEngineIsOneRankForAllGpusWithoutLibraryAndTransport) {
  job_.set_engine("vLLM 0.33.0");
  job_.set_connected_ranks(1);
  job_.mutable_shape()->set_num_gpus(3);
  EXPECT_THAT(One("ranks").detail, HasSubstr("vLLM 0.33.0 asks for 3 GPUs, at question "));
  EXPECT_EQ(One("library").name, "missing");
  EXPECT_EQ(One("transport").name, "missing");
}

TEST_F(ChecksTest, AJobThatIsWorseThanWithoutEplbFails) {
  EXPECT_EQ(One("gain").result, Result::kOk);
  job_.set_worse_reason("less even than without EPLB for 3 windows in a row");
  EXPECT_THAT(
      One("gain"),
      Is(Result::kFailed, HasSubstr("for 3 windows in a row; eplbctl explain shows the decision")));
  job_.set_ending(v1::RUN_ENDING_FINISHED);
  EXPECT_EQ(One("gain").name, "missing");
}

TEST_F(ChecksTest, AJobThatOnlyObservesIsToldSo) {
  EXPECT_EQ(One("mode").detail, "apply: decisions that pay are carried out");
  job_.mutable_policy()->set_mode("observe");
  EXPECT_THAT(One("mode"), Is(Result::kOk, HasSubstr("none is applied")));
}

TEST_F(ChecksTest, QuarantineFails) {
  job_.set_state(v1::JOB_STATE_QUARANTINE);
  job_.set_waiting_for("an operator, or a new run: ranks 0 and 3 run different digests");
  job_.set_last_reason("a decision, which is not the cause");
  EXPECT_THAT(One("state"),
              Is(Result::kFailed,
                 HasSubstr("ranks 0 and 3 run different digests; eplbctl resume ends it")));
  EXPECT_THAT(One("state").detail, Not(HasSubstr("not the cause")));
}

// Deadlines are the daemon's settings: some are hours long.
TEST_F(ChecksTest, AStateIsLateWhenTheDaemonSaysSo) {
  for (const v1::JobState state :
       {v1::JOB_STATE_RECOVERING, v1::JOB_STATE_SOLVING, v1::JOB_STATE_PREPARING,
        v1::JOB_STATE_VOTING, v1::JOB_STATE_CANCELLING}) {
    job_.set_state(state);
    job_.set_state_seconds(7200);
    job_.clear_stuck_seconds();
    EXPECT_EQ(One("state").result, Result::kOk) << state;
    job_.set_state_seconds(5);
    job_.set_stuck_seconds(5);
    EXPECT_EQ(One("state").result, Result::kWarning) << state;
    EXPECT_THAT(One("state").detail, HasSubstr("more than three times its deadline"));
  }
}

TEST_F(ChecksTest, RanksThatAreAwayOrRunSomethingElseAreNamed) {
  job_.set_connected_ranks(0);
  EXPECT_EQ(One("agreement").result, Result::kWarning);
  job_.set_connected_ranks(1);
  job_.set_world_size(2);
  job_.add_ranks()->set_rank(1);
  EXPECT_THAT(One("ranks"), Is(Result::kWarning, HasSubstr("away: rank 1")));
  job_.mutable_ranks(1)->set_connected(true);
  job_.mutable_ranks(1)->set_running_version(2);
  EXPECT_THAT(One("agreement"), Is(Result::kFailed, HasSubstr("rank 1 run another one")));
  job_.set_state(v1::JOB_STATE_VOTING);
  EXPECT_EQ(One("agreement").result, Result::kWarning);
}

TEST_F(ChecksTest, ARunThatFailedOrWasLostIsAFindingAndOneThatMovedIsNot) {
  EXPECT_EQ(One("run").result, Result::kOk);
  job_.set_took_over("run-0");
  EXPECT_THAT(One("run"), Is(Result::kWarning, HasSubstr("took over from run-0")));
  job_.set_run_id("run-1");
  job_.set_end_reason("rank 2 failed after step 9: out of memory");
  job_.set_ending(v1::RUN_ENDING_FAILED);
  EXPECT_THAT(One("run"),
              Is(Result::kFailed, "run run-1 failed: rank 2 failed after step 9: out of memory"));
  job_.set_ending(v1::RUN_ENDING_LOST);
  EXPECT_THAT(One("run"), Is(Result::kFailed, HasSubstr("or end it with eplbctl forget")));
  job_.set_end_reason("its ranks continue with eplbd at b:1, which leads with term 9");
  job_.set_led_elsewhere(true);
  EXPECT_EQ(One("run").result, Result::kOk);
  job_.set_ending(v1::RUN_ENDING_FINISHED);
  EXPECT_EQ(One("run").result, Result::kOk);
}

TEST_F(ChecksTest, ALostRunWithoutRanksSinceTheDaemonStartedIsOneFinding) {
  job_.set_state(v1::JOB_STATE_RECOVERING);
  job_.set_stuck_seconds(60);
  job_.set_ending(v1::RUN_ENDING_LOST);
  job_.set_connected_ranks(0);
  job_.clear_world_size();
  job_.clear_ranks();
  std::vector<std::string> findings;
  for (const Check& check : CheckJob(job_, Body(), {})) {
    if (check.result != Result::kOk) findings.push_back(check.name);
  }
  EXPECT_THAT(findings, ::testing::ElementsAre("run"));
}

TEST_F(ChecksTest, NobodyMissesTheRanksOfAJobThatFinished) {
  job_.mutable_ranks(0)->set_connected(false);
  job_.set_connected_ranks(0);
  for (const char* name : {"ranks", "agreement"}) {
    EXPECT_EQ(One(name).result, Result::kWarning) << name;
  }
  job_.set_ending(v1::RUN_ENDING_FINISHED);
  for (const char* name : {"ranks", "agreement"}) {
    EXPECT_EQ(One(name).result, Result::kOk) << name;
  }
}

TEST_F(ChecksTest, NothingIsDueOfARunThatHasFailedButItsReason) {
  job_.set_state(v1::JOB_STATE_FAILED);
  job_.set_ending(v1::RUN_ENDING_FAILED);
  job_.set_end_reason("rank 0 was lost");
  job_.mutable_ranks(0)->set_connected(false);
  job_.mutable_ranks(0)->set_state(v1::RANK_STATE_LOST);
  job_.set_connected_ranks(0);
  job_.clear_coverage();
  job_.set_paused(true);
  job_.set_pause_reason("paused by ann");
  EXPECT_EQ(One("state").result, Result::kOk);
  EXPECT_EQ(One("run").result, Result::kFailed);
  EXPECT_THAT(One("ranks"), Is(Result::kOk, "lost: rank 0"));
  EXPECT_EQ(One("agreement").result, Result::kOk);
  EXPECT_THAT(One("decisions"), Is(Result::kOk, HasSubstr("paused by ann")));
  job_.set_ending(v1::RUN_ENDING_LOST);  // its ranks may come back, and then the pause counts
  EXPECT_EQ(One("decisions").result, Result::kWarning);
}

TEST_F(ChecksTest, APlacementWhoseDigestIsNotThatOfItsMapsFails) {
  job_.set_digest(std::string(32, 'x'));
  EXPECT_EQ(One("placement").result, Result::kFailed);
  job_.set_version(4);  // a switch between the two answers
  EXPECT_EQ(One("placement").result, Result::kOk);
  const auto unknown = CheckJob(job_, absl::NotFoundError("not known"), {});
  EXPECT_EQ(Find(unknown, "placement").result, Result::kWarning);
  const auto broken = CheckJob(job_, absl::InternalError("no placement"), {});
  EXPECT_EQ(Find(broken, "placement").result, Result::kFailed);
}

TEST_F(ChecksTest, MissingReportsMixedLibrariesAndFailedPlansWarn) {
  job_.set_coverage(0.9);
  EXPECT_EQ(One("reports").result, Result::kWarning);
  job_.set_coverage(1);
  job_.mutable_ranks(0)->set_dropped_steps(10);
  EXPECT_EQ(One("reports").result, Result::kWarning);
  job_.mutable_ranks(0)->set_library_version("0.1.0");
  job_.add_ranks()->set_library_version("0.2.0");
  EXPECT_EQ(One("library").result, Result::kWarning);
  v1::ListPlansResponse plans;
  plans.add_plans()->set_result(v1::PLAN_RESULT_KEPT);
  EXPECT_EQ(One("decisions", plans).result, Result::kOk);
  plans.mutable_plans(0)->set_result(v1::PLAN_RESULT_WITHDRAWN);
  EXPECT_EQ(One("decisions", plans).result, Result::kWarning);
  job_.set_paused(true);
  EXPECT_THAT(One("decisions").detail, HasSubstr("paused"));
}

TEST_F(ChecksTest, AJobThatIsNotCountingFailsAndOneWithoutAFigureWarns) {
  job_.set_coverage(1);
  EXPECT_EQ(One("tokens").result, Result::kOk);
  job_.clear_balancedness();
  job_.set_not_measured_reason("no tokens were counted in steps 0..9");
  EXPECT_THAT(One("tokens"),
              Is(Result::kWarning, "no balancedness: no tokens were counted in steps 0..9"));
  job_.set_not_counting_reason("no rank has counted a token since step 0");
  EXPECT_THAT(One("tokens"),
              Is(Result::kFailed, "NOT_COUNTING: no rank has counted a token since step 0"));
}

TEST_F(ChecksTest, AStalledJobFailsWithTheNameAndTheReason) {
  job_.set_step_seconds(0.125);
  job_.set_coverage_now(1);
  EXPECT_THAT(One("balancing"),
              Is(Result::kOk,
                 "not stalled, 125.0 ms a step; 100.0 % of the reporters sent the newest window"));
  for (const char* name : {"store", "state", "lost", "hung", "windows", "decisions", "withdrawn"}) {
    job_.set_stalled(name);
    job_.set_stalled_reason("rank 1 is 2000 steps behind with its reports");
    EXPECT_EQ(One("balancing").result, Result::kFailed) << name;
    EXPECT_EQ(One("balancing").detail,
              "stalled (" + std::string(name) + "): rank 1 is 2000 steps behind with its reports");
  }
}

TEST_F(ChecksTest, ARunThatWaitsFailsAfterAMinuteOrWhenTheOtherOneAdvances) {
  EXPECT_EQ(One("candidate").name, "missing");
  job_.mutable_candidate()->set_run_id("run-2");
  job_.mutable_candidate()->set_world_size(4);
  job_.mutable_candidate()->set_registered_ranks(3);
  job_.mutable_candidate()->set_seconds(30);
  job_.mutable_candidate()->set_waits("rank 3 to register");
  EXPECT_EQ(One("candidate").result, Result::kWarning);
  job_.mutable_candidate()->set_seconds(61);
  EXPECT_THAT(One("candidate"),
              Is(Result::kFailed,
                 "a newer run, run-2, is not balanced: 3 of 4 ranks are registered after 1m 01s; "
                 "it waits for rank 3 to register; limits.start_deadline is 1m 00s"));
  job_.mutable_candidate()->set_deadline_seconds(10);
  job_.mutable_candidate()->set_seconds(9);
  EXPECT_EQ(One("candidate").result, Result::kWarning);
  job_.mutable_candidate()->set_seconds(11);
  EXPECT_THAT(One("candidate"), Is(Result::kFailed, HasSubstr("limits.start_deadline is 10")));
  job_.mutable_candidate()->set_seconds(1);
  job_.set_take_over_refused(true);
  EXPECT_THAT(One("candidate"), Is(Result::kFailed, HasSubstr("EPLB_TAKE_OVER=1")));
}

TEST_F(ChecksTest, RanksThatWereRefusedFailAlsoWhenTheJobHasFinished) {
  job_.set_ending(v1::RUN_ENDING_FINISHED);
  job_.set_refusal("rank 0 was refused: run 3 of job train was replaced by run 4");
  job_.set_refused_hellos(35);
  EXPECT_THAT(One("refused"),
              Is(Result::kWarning,
                 HasSubstr("refused 35 registrations, the newest: rank 0 was refused: run 3")));
  EXPECT_EQ(One("balancing").name, "missing");
  job_.set_stalled("refused");
  EXPECT_EQ(One("balancing").result, Result::kFailed);
}

TEST_F(ChecksTest, AJobWhoseRanksNeverCameBackFails) {
  job_.set_state(v1::JOB_STATE_RECOVERING);
  job_.set_connected_ranks(0);
  job_.set_stuck_seconds(200);
  EXPECT_THAT(One("state"), Is(Result::kFailed, HasSubstr("eplbctl forget")));
}

TEST_F(ChecksTest, AJobWithoutARankSinceTheDaemonStartedHasOneFinding) {
  job_ = AbsentJob();
  const auto findings = [this] {
    const std::vector<Check> checks = CheckJob(job_, Body(), {});
    return std::ranges::count_if(checks, [](auto& one) { return one.result != Result::kOk; });
  };
  EXPECT_THAT(One("state"), Is(Result::kWarning, HasSubstr("waits for the ranks to register")));
  EXPECT_EQ(findings(), 1);
  job_.set_stuck_seconds(200);
  EXPECT_THAT(One("state"), Is(Result::kFailed, HasSubstr("eplbctl forget")));
  EXPECT_EQ(findings(), 1);
}

TEST_F(ChecksTest, APauseOfTheDaemonsOwnAfterItLostItsStoreFails) {
  job_.set_paused(true);
  job_.set_pause_reason("paused by ann");
  EXPECT_EQ(One("decisions").result, Result::kWarning);
  job_.set_pause_reason("the store was moved aside at 2026-11-23 08:00:00 UTC");
  job_.set_paused_by_lost_store(true);
  EXPECT_EQ(One("decisions").result, Result::kFailed);
}

TEST_F(ChecksTest, TheDaemonsWarningsAndJobsThatItDoesNotServeFail) {
  v1::GetStatusResponse status;
  status.set_ready(true);
  EXPECT_EQ(CheckDaemon(status, "").size(), 1u);
  status.add_warnings("1024 descriptors are too few for limits.max_sessions");
  v1::Refusal& refusal = *status.add_refusals();
  refusal.set_job("j65");
  refusal.set_reason("the daemon already knows 64 jobs");
  refusal.set_count(8);
  refusal.set_seconds_ago(3);
  const std::vector<Check> checks = CheckDaemon(status, "");
  ASSERT_EQ(checks.size(), 3u);
  EXPECT_EQ(checks[1].result, Result::kFailed);
  EXPECT_EQ(checks[2].scope, "j65");
  EXPECT_EQ(checks[2].result, Result::kFailed);
  EXPECT_EQ(checks[2].detail,
            "the daemon does not serve this job: the daemon already knows 64 jobs (8 refusals, the "
            "newest 3.0 s ago)");
  EXPECT_EQ(CheckDaemon(status, "train").size(), 2u);
  refusal.set_seconds_ago(601);
  EXPECT_EQ(CheckDaemon(status, "").size(), 2u);
}

}  // namespace
}  // namespace eplb::cli
