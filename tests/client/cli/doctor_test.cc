#include <gmock/gmock.h>

#include <string>

#include "absl/strings/str_cat.h"

#include "client/cli/commands.h"
#include "proto/wire/placement_files.h"
#include "tests/client/cli/formats/test_files.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

namespace {

using ::testing::HasSubstr;

class DoctorTest : public FilesTest {
 protected:
  DoctorTest() { *daemon_.status.add_jobs() = HealthyJob(); }
  DoctorOptions Options(Format format = Format::kTable) const {
    return {.query = daemon_.Options(format), .all = true};
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

TEST_F(DoctorTest, ADaemonWithoutJobsHasNone) {
  daemon_.status.clear_jobs();
  EXPECT_THAT(RunDoctor({.query = daemon_.Options()}, kPlain).out,
              ::testing::StartsWith("no job yet (1 check; --all lists them)\n"));
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
  EXPECT_THAT(output.out, Says("train plans: the decisions cannot be listed", "ok       other "));
}

TEST_F(DoctorTest, WhatIsWellIsCountedAndTroublesAreListed) {
  for (int i = 1; i < 20; ++i) {
    v1::JobStatus job = HealthyJob();
    job.set_job(absl::StrCat("job-", i));
    *daemon_.status.add_jobs() = job;
  }
  const std::string good = RunDoctor({.query = daemon_.Options()}, kPlain).out;
  EXPECT_THAT(good, ::testing::MatchesRegex("20 jobs ok \\([0-9]+ checks; --all lists them\\)\n"));
  daemon_.status.mutable_jobs(7)->set_coverage(0.5);
  daemon_.status.mutable_jobs(7)->set_saved_seconds(-3);
  const std::string one = RunDoctor({.query = daemon_.Options()}, kPlain).out;
  EXPECT_THAT(one, Says("19 jobs ok, 1 with trouble (", "warning  job-7 reports: 50.0 %",
                        "warning  job-7 saved: 3.0 s LOST"));
  EXPECT_LE(CountOf("\n", one), 6u);
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
    EXPECT_THAT(out, Says("NCCL_RUNTIME_CONNECT=1", "note: a connection"));
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
  EXPECT_THAT(RunDoctor(options, kPlain).out,
              HasSubstr("stops: rank 0's log ends at step 9 without"));
  Write("rank-0.jsonl",
        log(0) + R"({"event":"stop","rank":0,"run_id":"a","step":9})" + std::string("\n"));
  EXPECT_THAT(RunDoctor(options, kPlain).out, HasSubstr("every log ends with a stop"));
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
