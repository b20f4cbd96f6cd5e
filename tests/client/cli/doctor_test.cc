#include "client/cli/doctor.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/wire/placement_files.h"
#include "tests/client/cli/formats/test_files.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

namespace {

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

Check One(const v1::JobStatus& job, const std::string& name,
          const v1::ListPlansResponse& plans = {}) {
  return Find(CheckJob(job, Body(), plans), name);
}

TEST(ChecksTest, AHealthyJobPassesAll) {
  for (const Check& check : CheckJob(HealthyJob(), Body(), {})) {
    EXPECT_EQ(check.result, Result::kOk) << check.name << ": " << check.detail;
  }
}

TEST(ChecksTest, AJobThatIsWorseThanWithoutEplbFails) {
  v1::JobStatus job = HealthyJob();
  EXPECT_EQ(One(job, "gain").result, Result::kOk);
  job.set_worse_reason("less even than without EPLB for 3 windows in a row");
  EXPECT_EQ(One(job, "gain").result, Result::kFailed);
  EXPECT_THAT(One(job, "gain").detail,
              HasSubstr("for 3 windows in a row; eplbctl explain shows the decision"));
  job.set_ending(v1::RUN_ENDING_FINISHED);
  EXPECT_EQ(One(job, "gain").name, "missing");
}

TEST(ChecksTest, AJobThatOnlyObservesIsToldSo) {
  v1::JobStatus job = HealthyJob();
  EXPECT_EQ(One(job, "mode").detail, "apply: decisions that pay are carried out");
  job.mutable_policy()->set_mode("observe");
  EXPECT_EQ(One(job, "mode").result, Result::kOk);
  EXPECT_THAT(One(job, "mode").detail, HasSubstr("none is applied"));
}

TEST(ChecksTest, QuarantineFails) {
  v1::JobStatus job = HealthyJob();
  job.set_state(v1::JOB_STATE_QUARANTINE);
  job.set_waiting_for("an operator, or a new run: ranks 0 and 3 run different digests");
  job.set_last_reason("a decision, which is not the cause");
  EXPECT_EQ(One(job, "state").result, Result::kFailed);
  EXPECT_THAT(One(job, "state").detail,
              HasSubstr("ranks 0 and 3 run different digests; eplbctl resume ends it"));
  EXPECT_THAT(One(job, "state").detail, Not(HasSubstr("not the cause")));
}

// Deadlines are the daemon's settings: some are hours long.
TEST(ChecksTest, AStateIsLateWhenTheDaemonSaysSo) {
  v1::JobStatus job = HealthyJob();
  for (const v1::JobState state :
       {v1::JOB_STATE_RECOVERING, v1::JOB_STATE_SOLVING, v1::JOB_STATE_PREPARING,
        v1::JOB_STATE_VOTING, v1::JOB_STATE_CANCELLING}) {
    job.set_state(state);
    job.set_state_seconds(7200);
    job.clear_stuck_seconds();
    EXPECT_EQ(One(job, "state").result, Result::kOk) << state;
    job.set_state_seconds(5);
    job.set_stuck_seconds(5);
    EXPECT_EQ(One(job, "state").result, Result::kWarning) << state;
    EXPECT_THAT(One(job, "state").detail, HasSubstr("more than three times its deadline"));
  }
}

TEST(ChecksTest, RanksThatAreAwayOrRunSomethingElseAreNamed) {
  v1::JobStatus job = HealthyJob();
  job.set_connected_ranks(0);
  EXPECT_EQ(One(job, "agreement").result, Result::kWarning);
  job.set_connected_ranks(1);
  job.set_world_size(2);
  job.add_ranks()->set_rank(1);
  EXPECT_EQ(One(job, "ranks").result, Result::kWarning);
  EXPECT_THAT(One(job, "ranks").detail, HasSubstr("away: rank 1"));
  job.mutable_ranks(1)->set_connected(true);
  job.mutable_ranks(1)->set_running_version(2);
  EXPECT_EQ(One(job, "agreement").result, Result::kFailed);
  EXPECT_THAT(One(job, "agreement").detail, HasSubstr("rank 1 run another one"));
  job.set_state(v1::JOB_STATE_VOTING);
  EXPECT_EQ(One(job, "agreement").result, Result::kWarning);
}

TEST(ChecksTest, ARunThatFailedOrWasLostIsAFindingAndOneThatMovedIsNot) {
  v1::JobStatus job = HealthyJob();
  EXPECT_EQ(One(job, "run").result, Result::kOk);
  job.set_took_over("run-0");
  EXPECT_EQ(One(job, "run").result, Result::kWarning);
  EXPECT_THAT(One(job, "run").detail, HasSubstr("took over from run-0"));
  job.set_run_id("run-1");
  job.set_end_reason("rank 2 failed after step 9: out of memory");
  job.set_ending(v1::RUN_ENDING_FAILED);
  EXPECT_EQ(One(job, "run").result, Result::kFailed);
  EXPECT_EQ(One(job, "run").detail, "run run-1 failed: rank 2 failed after step 9: out of memory");
  job.set_ending(v1::RUN_ENDING_LOST);
  EXPECT_EQ(One(job, "run").result, Result::kFailed);
  EXPECT_THAT(One(job, "run").detail, HasSubstr("or end it with eplbctl forget"));
  job.set_end_reason("its ranks continue with eplbd at b:1, which leads with term 9");
  job.set_led_elsewhere(true);
  EXPECT_EQ(One(job, "run").result, Result::kOk);
  job.set_ending(v1::RUN_ENDING_FINISHED);
  EXPECT_EQ(One(job, "run").result, Result::kOk);
}

TEST(ChecksTest, NobodyMissesTheRanksOfAJobThatFinished) {
  v1::JobStatus job = HealthyJob();
  job.mutable_ranks(0)->set_connected(false);
  job.set_connected_ranks(0);
  for (const char* name : {"ranks", "agreement"}) {
    EXPECT_EQ(One(job, name).result, Result::kWarning) << name;
  }
  job.set_ending(v1::RUN_ENDING_FINISHED);
  for (const char* name : {"ranks", "agreement"}) {
    EXPECT_EQ(One(job, name).result, Result::kOk) << name;
  }
}

TEST(ChecksTest, NothingIsDueOfARunThatHasFailedButItsReason) {
  v1::JobStatus job = HealthyJob();
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_ending(v1::RUN_ENDING_FAILED);
  job.set_end_reason("rank 0 was lost");
  job.mutable_ranks(0)->set_connected(false);
  job.mutable_ranks(0)->set_state(v1::RANK_STATE_LOST);
  job.set_connected_ranks(0);
  job.clear_coverage();
  job.set_paused(true);
  job.set_pause_reason("paused by ann");
  EXPECT_EQ(One(job, "state").result, Result::kOk);
  EXPECT_EQ(One(job, "run").result, Result::kFailed);
  EXPECT_EQ(One(job, "ranks").result, Result::kOk);
  EXPECT_EQ(One(job, "ranks").detail, "lost: rank 0");
  EXPECT_EQ(One(job, "agreement").result, Result::kOk);
  EXPECT_EQ(One(job, "decisions").result, Result::kOk);
  EXPECT_THAT(One(job, "decisions").detail, HasSubstr("paused by ann"));
  job.set_ending(v1::RUN_ENDING_LOST);  // its ranks may come back, and then the pause counts
  EXPECT_EQ(One(job, "decisions").result, Result::kWarning);
}

TEST(ChecksTest, APlacementWhoseDigestIsNotThatOfItsMapsFails) {
  v1::JobStatus job = HealthyJob();
  job.set_digest(std::string(32, 'x'));
  EXPECT_EQ(One(job, "placement").result, Result::kFailed);
  job.set_version(4);  // a switch between the two answers
  EXPECT_EQ(One(job, "placement").result, Result::kOk);
  const auto unknown = CheckJob(job, absl::NotFoundError("not known"), {});
  EXPECT_EQ(Find(unknown, "placement").result, Result::kWarning);
  const auto broken = CheckJob(job, absl::InternalError("no placement"), {});
  EXPECT_EQ(Find(broken, "placement").result, Result::kFailed);
}

TEST(ChecksTest, MissingReportsMixedLibrariesAndFailedPlansWarn) {
  v1::JobStatus job = HealthyJob();
  job.set_coverage(0.9);
  EXPECT_EQ(One(job, "reports").result, Result::kWarning);
  job.set_coverage(1);
  job.mutable_ranks(0)->set_dropped_steps(10);
  EXPECT_EQ(One(job, "reports").result, Result::kWarning);
  job.mutable_ranks(0)->set_library_version("0.1.0");
  job.add_ranks()->set_library_version("0.2.0");
  EXPECT_EQ(One(job, "library").result, Result::kWarning);
  v1::ListPlansResponse plans;
  plans.add_plans()->set_result(v1::PLAN_RESULT_KEPT);
  EXPECT_EQ(One(job, "decisions", plans).result, Result::kOk);
  plans.mutable_plans(0)->set_result(v1::PLAN_RESULT_WITHDRAWN);
  EXPECT_EQ(One(job, "decisions", plans).result, Result::kWarning);
  job.set_paused(true);
  EXPECT_THAT(One(job, "decisions").detail, HasSubstr("paused"));
}

TEST(ChecksTest, AJobThatIsNotCountingFailsAndOneWithoutAFigureWarns) {
  v1::JobStatus job = HealthyJob();
  job.set_coverage(1);
  EXPECT_EQ(One(job, "tokens").result, Result::kOk);
  job.clear_balancedness();
  job.set_not_measured_reason("no tokens were counted in steps 0..9");
  EXPECT_EQ(One(job, "tokens").result, Result::kWarning);
  EXPECT_EQ(One(job, "tokens").detail, "no balancedness: no tokens were counted in steps 0..9");
  job.set_not_counting_reason("no rank has counted a token since step 0");
  EXPECT_EQ(One(job, "tokens").result, Result::kFailed);
  EXPECT_EQ(One(job, "tokens").detail, "NOT_COUNTING: no rank has counted a token since step 0");
}

TEST(ChecksTest, AStalledJobFailsWithTheNameAndTheReason) {
  v1::JobStatus job = HealthyJob();
  job.set_step_seconds(0.125);
  job.set_coverage_now(1);
  EXPECT_EQ(One(job, "balancing").result, Result::kOk);
  EXPECT_EQ(One(job, "balancing").detail,
            "not stalled, 125.0 ms a step; 100.0 % of the reporters sent the newest window");
  for (const char* name : {"store", "state", "lost", "hung", "windows", "decisions", "withdrawn"}) {
    job.set_stalled(name);
    job.set_stalled_reason("rank 1 is 2000 steps behind with its reports");
    EXPECT_EQ(One(job, "balancing").result, Result::kFailed) << name;
    EXPECT_EQ(One(job, "balancing").detail,
              "stalled (" + std::string(name) + "): rank 1 is 2000 steps behind with its reports");
  }
}

TEST(ChecksTest, ARunThatWaitsFailsAfterAMinuteOrWhenTheOtherOneAdvances) {
  v1::JobStatus job = HealthyJob();
  EXPECT_EQ(One(job, "candidate").name, "missing");
  job.mutable_candidate()->set_run_id("run-2");
  job.mutable_candidate()->set_world_size(4);
  job.mutable_candidate()->set_registered_ranks(3);
  job.mutable_candidate()->set_seconds(30);
  job.mutable_candidate()->set_waits("rank 3 to register");
  EXPECT_EQ(One(job, "candidate").result, Result::kWarning);
  job.mutable_candidate()->set_seconds(61);
  EXPECT_EQ(One(job, "candidate").result, Result::kFailed);
  EXPECT_EQ(One(job, "candidate").detail,
            "a newer run, run-2, is not balanced: 3 of 4 ranks are registered after 1m 01s; "
            "it waits for rank 3 to register; limits.start_deadline is 1m 00s");
  job.mutable_candidate()->set_deadline_seconds(10);
  job.mutable_candidate()->set_seconds(9);
  EXPECT_EQ(One(job, "candidate").result, Result::kWarning);
  job.mutable_candidate()->set_seconds(11);
  EXPECT_EQ(One(job, "candidate").result, Result::kFailed);
  EXPECT_THAT(One(job, "candidate").detail, HasSubstr("limits.start_deadline is 10"));
  job.mutable_candidate()->set_seconds(1);
  job.set_take_over_refused(true);
  EXPECT_EQ(One(job, "candidate").result, Result::kFailed);
  EXPECT_THAT(One(job, "candidate").detail, HasSubstr("EPLB_TAKE_OVER=1"));
}

TEST(ChecksTest, RanksThatWereRefusedFailAlsoWhenTheJobHasFinished) {
  v1::JobStatus job = HealthyJob();
  job.set_ending(v1::RUN_ENDING_FINISHED);
  job.set_refusal("rank 0 was refused: run 3 of job train was replaced by run 4");
  job.set_refused_hellos(35);
  EXPECT_EQ(One(job, "refused").result, Result::kWarning);
  EXPECT_THAT(One(job, "refused").detail,
              HasSubstr("refused 35 registrations, the newest: rank 0 was refused: run 3"));
  EXPECT_EQ(One(job, "balancing").name, "missing");
  job.set_stalled("refused");
  EXPECT_EQ(One(job, "balancing").result, Result::kFailed);
}

TEST(ChecksTest, AJobWhoseRanksNeverCameBackFails) {
  v1::JobStatus job = HealthyJob();
  job.set_state(v1::JOB_STATE_RECOVERING);
  job.set_connected_ranks(0);
  job.set_stuck_seconds(200);
  EXPECT_EQ(One(job, "state").result, Result::kFailed);
  EXPECT_THAT(One(job, "state").detail, HasSubstr("eplbctl forget"));
}

TEST(ChecksTest, APauseOfTheDaemonsOwnAfterItLostItsStoreFails) {
  v1::JobStatus job = HealthyJob();
  job.set_paused(true);
  job.set_pause_reason("paused by ann");
  EXPECT_EQ(One(job, "decisions").result, Result::kWarning);
  job.set_pause_reason("the store was moved aside at 2026-11-23 08:00:00 UTC");
  job.set_paused_by_lost_store(true);
  EXPECT_EQ(One(job, "decisions").result, Result::kFailed);
}

TEST(ChecksTest, TheDaemonsWarningsAndJobsThatItDoesNotServeFail) {
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

using ::testing::HasSubstr;

class DoctorTest : public FilesTest {
 protected:
  DoctorTest() { *daemon_.status.add_jobs() = HealthyJob(); }
  DoctorOptions Options(Format format = Format::kTable) const {
    return {.query = daemon_.Options(format), .job = "", .run = ""};
  }
  ScriptedQuery daemon_;
};

TEST_F(DoctorTest, ExitCodeFollowsTheWorstCheck) {
  EXPECT_EQ(RunDoctor(Options(), kPlain).exit_code, kOk);
  daemon_.status.mutable_jobs(0)->set_coverage(0.5);
  EXPECT_EQ(RunDoctor(Options(), kPlain).exit_code, kOk);
  DoctorOptions strict = Options();
  strict.strict = true;
  EXPECT_EQ(RunDoctor(strict, kPlain).exit_code, kConditionNotMet);
  daemon_.status.set_ready(false);
  daemon_.status.set_not_ready_reason("the store cannot be written");
  const Output output = RunDoctor(Options(), kPlain);
  EXPECT_EQ(output.exit_code, kConditionNotMet);
  EXPECT_THAT(output.out, HasSubstr("failed   eplbd ready: no proposals can be made: the store"));
  EXPECT_TRUE(FitsInto(output.out, 80)) << output.out;
  EXPECT_THAT(RunDoctor(Options(Format::kJson), kPlain).out,
              HasSubstr(R"({"healthy":false,"checks":[{"scope":"eplbd","check":"ready")"));
}

TEST_F(DoctorTest, DecisionsThatCannotBeReadHideNoJob) {
  v1::Plan plan;
  plan.set_reason("not UTF-8: \xff");
  daemon_.plans = {plan};
  v1::JobStatus other = HealthyJob();
  other.set_job("other");
  *daemon_.status.add_jobs() = other;
  const Output output = RunDoctor(Options(), kPlain);
  EXPECT_EQ(output.exit_code, kConditionNotMet) << output.message;
  EXPECT_THAT(output.out, HasSubstr("train plans: the decisions cannot be listed"));
  EXPECT_THAT(output.out, HasSubstr("ok       other "));
}

TEST_F(DoctorTest, AFailedRunIsNotHealthy) {
  daemon_.status.mutable_jobs(0)->set_ending(v1::RUN_ENDING_FAILED);
  daemon_.status.mutable_jobs(0)->set_end_reason("rank 2 failed after step 9");
  const Output output = RunDoctor(Options(Format::kJson), kPlain);
  EXPECT_EQ(output.exit_code, kConditionNotMet);
  EXPECT_THAT(output.out, HasSubstr(R"({"healthy":false,)"));
  EXPECT_THAT(output.out, HasSubstr(R"("check":"run","result":"failed",)"));
  EXPECT_THAT(output.out, HasSubstr("rank 2 failed after step 9"));
}

// Ranks that differ, every variable and a note: the longest check there is.
TEST_F(DoctorTest, TheSettingsOfNcclFitNarrowAndWideTerminals) {
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.mutable_shape()->set_num_nodes(2);
  *job.add_ranks() = job.ranks(0);
  job.mutable_ranks(1)->set_rank(1);
  for (v1::RankStatus& rank : *job.mutable_ranks()) {
    rank.mutable_transport()->set_name("nccl");
    rank.mutable_transport()->set_nccl_library(
        "/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2");
    rank.mutable_transport()->set_nccl_version(rank.rank() == 0 ? "2.28.9" : "2.27.3");
  }
  for (const int width : {80, 160}) {
    const std::string out = RunDoctor(Options(), {.width = width}).out;
    EXPECT_TRUE(FitsInto(out, static_cast<size_t>(width))) << out;
    EXPECT_THAT(out, HasSubstr("NCCL_RUNTIME_CONNECT=1"));
    EXPECT_THAT(out, HasSubstr("note: a connection"));
  }
}

TEST_F(DoctorTest, AnUnknownJobIsNotFound) {
  DoctorOptions options = Options();
  options.job = "nobody";
  EXPECT_EQ(RunDoctor(options, kPlain).exit_code, kNotFound);
}

TEST_F(DoctorTest, LogsOfARunAreCheckedByTheValidator) {
  const std::string digest = DigestOf(ExampleBefore()).Hex();
  const auto log = [&digest](int64_t steps_version) {
    return absl::StrCat(
        R"({"event":"start","rank":0,"run_id":"a","step":0,"version":0,"digest":")", digest,
        "\"}\n", R"({"event":"steps","rank":0,"run_id":"a","step":0,"last_step":9,"version":)",
        steps_version, R"(,"digest":")", digest, "\"}\n");
  };
  DoctorOptions options = Options();
  options.run = Path("");
  Write("placements.jsonl", PlacementsLogLine({.step = 0,
                                               .version = 0,
                                               .digest = DigestOf(ExampleBefore()),
                                               .placement = ExampleBefore()}) +
                                "\n");
  Write("rank-0.jsonl", log(0));
  EXPECT_EQ(RunDoctor(options, kPlain).exit_code, kOk) << RunDoctor(options, kPlain).out;
  Write("rank-0.jsonl", log(4));
  EXPECT_EQ(RunDoctor(options, kPlain).exit_code, kConditionNotMet);
  options.run = Path("nowhere");
  EXPECT_EQ(RunDoctor(options, kPlain).exit_code, kUsage);
}

TEST_F(DoctorTest, AStalledJobAndOneThatIsRefusedAreNotHealthy) {
  daemon_.status.mutable_jobs(0)->set_stalled("windows");
  daemon_.status.mutable_jobs(0)->set_stalled_reason("rank 1 is 2000 steps behind");
  const Output stalled = RunDoctor(Options(), kPlain);
  EXPECT_EQ(stalled.exit_code, kConditionNotMet);
  EXPECT_THAT(stalled.out, HasSubstr("failed   train balancing: stalled (windows): rank 1 is"));
  daemon_.status.mutable_jobs(0)->clear_stalled();
  EXPECT_EQ(RunDoctor(Options(), kPlain).exit_code, kOk);
  daemon_.status.add_refusals()->set_job("j65");
  EXPECT_EQ(RunDoctor(Options(), kPlain).exit_code, kConditionNotMet);
  DoctorOptions unknown = Options();
  unknown.job = "j65";
  EXPECT_EQ(RunDoctor(unknown, kPlain).exit_code, kConditionNotMet);
}

}  // namespace

}  // namespace eplb::cli
