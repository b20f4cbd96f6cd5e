// status, get jobs and get placement.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/files.h"
#include "base/json_value.h"
#include "client/cli/commands.h"
#include "proto/wire/placement_files.h"
#include "proto/wire/placement_json.h"
#include "tests/client/cli/formats/test_files.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class QueryTest : public FilesTest {
 protected:
  QueryTest() {
    v1::JobStatus& job = *daemon_.status.add_jobs();
    job = ExampleJob();
    job.set_job("train\x1b[31m");
    job.set_stuck_seconds(12);
    job.add_layer_balancedness(0.5);
    job.add_layer_balancedness(1);
  }
  QueryOptions Options(Format format = Format::kTable) const { return daemon_.Options(format); }
  GetOptions Placed(const std::string& job, Format format = Format::kTable) const {
    return {.query = Options(format), .job = job};
  }
  ScriptedQuery daemon_;
};

TEST_F(QueryTest, StatusTellsTheDaemonAndEachJob) {
  const std::string output = TextOf(RunStatus({.query = Options()}, kPlain));
  EXPECT_THAT(output, StartsWith("train?[31m: time saved is not known\n"
                                 "eplbd 0.1.0, up 2h 05m, term 0, ready\n"));
  EXPECT_THAT(output, Says("PREPARING", "7/8", "12,345", "0.750", "0.6125", "waits for ranks 3, 5",
                           "last decision: moved 12 experts"));
  EXPECT_THAT(output, Not(HasSubstr("\x1b")));
  EXPECT_TRUE(FitsInto(output, 80)) << output;
}

TEST_F(QueryTest, TwentyJobsFitOneScreenWithTroubleFirst) {
  daemon_.status.clear_jobs();
  for (int i = 0; i < 20; ++i) {
    v1::JobStatus& job = *daemon_.status.add_jobs();
    job = HealthyJob();
    job.set_job(absl::StrFormat("pretrain-moe-64x8-%02d", i));
    job.set_saved_seconds(i == 9 ? -60 : 3600);
    job.set_saved_basis("a token costs 2 us");
    job.set_step(1'234'567);
  }
  daemon_.status.mutable_jobs(12)->set_stalled("hung");
  daemon_.status.mutable_jobs(12)->set_stalled_reason("rank 3 has not answered for 40 s, " +
                                                      std::string(100, 'x'));
  const auto status = [this](const std::string& sort, const std::string& filter = "") {
    return TextOf(RunStatus({.query = Options(), .sort = sort, .filter = filter}, {.width = 80}));
  };
  const std::string output = status("");
  EXPECT_LE(CountOf("\n", output), 30u) << output;
  EXPECT_TRUE(FitsInto(output, 80)) << output;
  EXPECT_THAT(output, StartsWith("20 jobs: 18h 59m saved, net of pauses of 0 s; 1 lost time\n"));
  const auto place = [&output](const char* job) { return output.find(job); };
  EXPECT_LT(place("8-12"), place("8-09")) << "a stalled job before one that lost time";
  EXPECT_LT(place("8-09"), place("8-00"));
  EXPECT_THAT(output, Says("8-12: STALLED (hung): rank 3", "8-09: 1m 00s LOST"));
  const std::string by_name = status("name");
  EXPECT_LT(by_name.find("8-00"), by_name.find("8-12"));
  EXPECT_LT(status("saved").find("8-09"), status("saved").find("8-00"));
  EXPECT_THAT(status("", "STALLED"), AllOf(HasSubstr("8-12"), Not(HasSubstr("8-00"))));
  EXPECT_THAT(status("", "nothing"), HasSubstr("no job matches --filter"));
  const std::string json = TextOf(RunStatus({.query = Options(Format::kJson)}, kPlain));
  EXPECT_LT(json.find("8-00"), json.find("8-12")) << "JSON stays by name";
}

TEST_F(QueryTest, LongNamesStayApartAndUseTheWidthOfTheTerminal) {
  daemon_.status.clear_jobs();
  const std::string name = "prod-moe-deepseek-v4-large-run-0";
  for (int i = 1; i <= 3; ++i) {
    v1::JobStatus& job = *daemon_.status.add_jobs();
    job = HealthyJob();
    job.set_job(absl::StrCat(name, i));
  }
  daemon_.status.mutable_jobs(2)->set_stalled("hung");
  daemon_.status.mutable_jobs(2)->set_stalled_reason(std::string(300, 'x'));
  const auto status = [this](int width, const std::string& job = "") {
    return TextOf(RunStatus({.query = Options(), .job = job}, {.width = width}));
  };
  EXPECT_THAT(status(80), Says("prod-moe-d", "run-01  ", "run-02  ", "\n" + name + "3: STALLED"));
  EXPECT_TRUE(FitsInto(status(80), 80)) << status(80);
  EXPECT_THAT(status(200), Says("\n" + name + "1  ", "\n" + name + "3  "));
  EXPECT_THAT(status(80, name + "2"), StartsWith(name + "2: time saved"));
  EXPECT_THAT(TextOf(RunGetJobs({.query = Options()}, {.width = 200})), Says(name + "1  "));
}

TEST_F(QueryTest, TroublesAndARefusalLeaveTwentyJobsOnOneScreen) {
  daemon_.status.clear_jobs();
  for (int i = 0; i < 20; ++i) {
    v1::JobStatus& job = *daemon_.status.add_jobs();
    job = HealthyJob();
    job.set_job(absl::StrFormat("job-%02d", i));
    if (i == 0) job.set_ending(v1::RUN_ENDING_FINISHED);
    if (i == 0) job.set_saved_seconds(-5);
    if (i > 15) job.set_stalled("hung");
  }
  v1::Refusal& refusal = *daemon_.status.add_refusals();
  refusal.set_job("another");
  refusal.set_reason("the daemon has 20 jobs, as many as limits.max_jobs " + std::string(99, 'x'));
  const std::string output = TextOf(RunStatus({.query = Options()}, kPlain));
  EXPECT_LE(CountOf("\n", output), 30u) << output;
  EXPECT_TRUE(FitsInto(output, 80)) << output;
  EXPECT_THAT(output, Says("and 1 more: eplbctl doctor\nanother is not served: the daemon has 20"));
  EXPECT_LT(output.find("job-15"), output.find("job-00")) << "what runs before what has ended";
  *daemon_.status.add_refusals() = refusal;
  EXPECT_THAT(TextOf(RunStatus({.query = Options()}, kPlain)),
              HasSubstr("another and 1 more are not served: the daemon"));
}

TEST_F(QueryTest, OneJobOpensWithTheTimeThatItSavedAndNamesTheBasis) {
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.set_job("train");
  job.set_saved_seconds(41.23);
  job.set_spent_seconds(0.5);
  job.set_saved_basis("a token costs 2 us, as cost.token_ns states");
  job.set_last_reason("kept, yy" + std::string(200, ' ') + "zz");
  std::string output = TextOf(RunStatus({.query = Options()}, kPlain));
  EXPECT_THAT(output, StartsWith("train: 41.2 s saved, net of pauses of 500.0 ms\n"));
  EXPECT_THAT(output, Says("saved: a token costs 2 us", "last decision: kept, yy"));
  EXPECT_THAT(output, Not(HasSubstr("zz"))) << "explain has all of it";
  const std::string report = TextOf(RunReportCommand({.query = Options(), .job = "train"}, kPlain));
  EXPECT_THAT(report, StartsWith("train: 41.2 s saved, net of pauses of 500.0 ms\n"));
  EXPECT_THAT(TextOf(RunReportCommand({.query = Options(Format::kJson), .job = "train"}, kPlain)),
              HasSubstr(R"("saved_seconds": 41.23)"));
  EXPECT_EQ(RunReportCommand({.query = Options()}, kPlain).exit_code, kUsage);
  job.set_saved_is_assumed(true);
  EXPECT_THAT(TextOf(RunStatus({.query = Options()}, kPlain)),
              AllOf(StartsWith("train: about 41.2 s saved"), HasSubstr("~41.2 s")));
  job.set_saved_is_assumed(false);
  job.set_saved_seconds(-2);
  output = TextOf(RunStatus({.query = Options()}, kPlain));
  EXPECT_THAT(output, StartsWith("train: 2.0 s LOST, net of pauses of 500.0 ms: one slot per"));
  job.clear_saved_basis();
  output = TextOf(RunStatus({.query = Options()}, kPlain));
  EXPECT_THAT(output, AllOf(StartsWith("train: 2.0 s LOST, before pauses of 500.0 ms"),
                            Not(HasSubstr("saved: \n"))));
}

TEST_F(QueryTest, AReportOfAJobRefusesWhatNeedsADirectoryAndWritesItsJson) {
  daemon_.status.mutable_jobs(0)->set_job("train");
  const ReportOptions job{.query = Options(), .job = "train"};
  std::vector<ReportOptions> wrong(6, job);
  wrong[0].html = "x.html";
  wrong[1].events = "x.json";
  wrong[2].min_rebalances = 1;
  wrong[3].min_gain = 0;
  wrong[4].window_steps = 10;
  wrong[5].query.format = Format::kTrace;
  for (const ReportOptions& options : wrong) {
    const Output output = RunReportCommand(options, kPlain);
    EXPECT_EQ(output.exit_code, kUsage);
    EXPECT_THAT(output.message, EndsWith(" needs the directory of a run in place of --job"));
  }
  ReportOptions written = job;
  written.out = Path("job.json");
  EXPECT_THAT(TextOf(RunReportCommand(written, kPlain)), StartsWith("train: "));
  EXPECT_THAT(ReadRegularFile(written.out).value(), HasSubstr(R"("job": "train")"));
  EXPECT_THAT(RunReportCommand({.query = Options(), .directory = "train"}, kPlain).message,
              HasSubstr("train is not a directory; for a job of the daemon give --job"));
}

TEST_F(QueryTest, StatusOfOneJobLeavesTheOthersOut) {
  daemon_.status.add_jobs()->set_job("other");
  v1::Refusal& refusal = *daemon_.status.add_refusals();
  refusal.set_job("refused");
  refusal.set_reason("no room");
  const std::string one = TextOf(RunStatus({.query = Options(), .job = "other"}, kPlain));
  EXPECT_THAT(one, AllOf(HasSubstr("other"), Not(HasSubstr("train")), Not(HasSubstr("refused"))));
  const std::string refused = TextOf(RunStatus({.query = Options(), .job = "refused"}, kPlain));
  EXPECT_THAT(refused, AllOf(HasSubstr("no room"), Not(HasSubstr("other"))));
  const Output none = RunStatus({.query = Options(Format::kJson), .job = "missing"}, kPlain);
  EXPECT_EQ(none.exit_code, kNotFound);
  EXPECT_THAT(none.message, HasSubstr("no job missing"));
  EXPECT_EQ(none.out, "");
}

TEST_F(QueryTest, NothingThatATerminalObeysIsPrintedInAnyForm) {
  const std::string csi = "\u009b";
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.set_last_reason("moved \u009b31m12 experts\u202e");
  job.mutable_ranks(0)->set_library_version("0.1.0\u009b2J");
  daemon_.status.add_warnings("store\u009b2J");
  for (const Format format : {Format::kTable, Format::kJson}) {
    const std::string output = TextOf(RunStatus({.query = Options(format)}, kPlain));
    EXPECT_THAT(output, HasSubstr("moved ?31m12 experts?"));
    EXPECT_THAT(output, Not(HasSubstr(csi)));
    EXPECT_THAT(output, Not(HasSubstr("\u202e")));
  }
}

TEST_F(QueryTest, StatusWithoutJobsOrReadinessSaysSo) {
  daemon_.status.clear_jobs();
  daemon_.status.set_ready(false);
  daemon_.status.set_not_ready_reason("the store cannot be written");
  const Output output = RunStatus({.query = Options()}, kPlain);
  EXPECT_THAT(output.out, HasSubstr("not ready\nthe store cannot be written\n"));
  EXPECT_THAT(output.out, EndsWith("no job has connected yet\n"));
}

TEST_F(QueryTest, JobsThatTheAskerMayNotSeeAreNotCalledNone) {
  daemon_.status.clear_jobs();
  EXPECT_EQ(RunGetJobs({.query = Options()}, kPlain).message, "");
  daemon_.status.set_jobs_hidden(true);
  EXPECT_THAT(RunStatus({.query = Options()}, kPlain).out, HasSubstr("\nno job that you may see"));
  const Output jobs = RunGetJobs({.query = Options()}, kPlain);
  EXPECT_EQ(jobs.exit_code, kOk);
  EXPECT_EQ(jobs.message, kNoVisibleJob);
  EXPECT_THAT(RunGetJobs({.query = Options(Format::kJson)}, kPlain).out,
              HasSubstr(R"({"jobs":[],"jobs_hidden":true,)"));
}

TEST_F(QueryTest, StatusAndJobsAsJsonKeepEveryField) {
  const absl::StatusOr<wire::JsonValue> status =
      wire::ParseJson(RunStatus({.query = Options(Format::kJson)}, kPlain).out);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->Find("uptime_seconds")->real, 7500);
  const std::string jobs = RunGetJobs({.query = Options(Format::kJson)}, kPlain).out;
  EXPECT_THAT(jobs, Says(R"("job":"train?[31m")", R"("connected_ranks":7)", R"("digest":")",
                         R"("balancedness":0.75,)", R"("balancedness_static":0.6125)",
                         R"("balancedness_predicted":0.9875,"balancedness_seen":0.8125)",
                         R"("measured_first_step":12200,"measured_last_step":12249)",
                         R"("layer_balancedness":[0.5,1.0])", R"("stuck_seconds":12.0)"));
}

TEST_F(QueryTest, RanksAreInTheJsonOfJobsOnlyWhenTheyAreAskedFor) {
  const std::string ranks = R"("ranks":[{"rank":0)";
  EXPECT_THAT(RunGetJobs({.query = Options(Format::kJson)}, kPlain).out, Not(HasSubstr(ranks)));
  EXPECT_THAT(RunStatus({.query = Options(Format::kJson)}, kPlain).out, Not(HasSubstr(ranks)));
  EXPECT_THAT(RunGetJobs({.query = Options(Format::kJson), .ranks = true}, kPlain).out,
              HasSubstr(ranks));
  EXPECT_THAT(RunStatus({.query = Options(Format::kJson), .ranks = true}, kPlain).out,
              HasSubstr(ranks));
}

TEST_F(QueryTest, PausedAndObserveAreInTheRowsOfStatusAndJobs) {
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.set_state(v1::JOB_STATE_IDLE);
  job.clear_stuck_seconds();
  job.mutable_policy()->set_mode("observe");
  EXPECT_THAT(RunStatus({.query = Options()}, kPlain).out, HasSubstr("  IDLE (observe)  "));
  EXPECT_THAT(RunGetJobs({.query = Options()}, kPlain).out, HasSubstr("  IDLE (observe)  "));
  job.set_paused(true);
  job.set_pause_reason("paused by alice: evaluation");
  const std::string status = RunStatus({.query = Options()}, kPlain).out;
  EXPECT_THAT(status, Says("  IDLE (paused, observe)  ", " PAUSED by alice: evaluation\n"));
  EXPECT_THAT(RunGetJobs({.query = Options()}, kPlain).out, HasSubstr("  IDLE (paused, observe)"));
  EXPECT_TRUE(FitsInto(status, 80)) << status;
}

TEST_F(QueryTest, JobsWithoutARankSinceTheDaemonStartedWaitAndHaveNoFigures) {
  v1::JobStatus& absent = *daemon_.status.mutable_jobs(0);
  absent = AbsentJob();
  absent.set_stuck_seconds(200);
  const std::string one = TextOf(RunStatus({.query = Options()}, kPlain));
  EXPECT_THAT(one,
              Says("RECOVERING (stuck)", "start the job again, or end it with eplbctl forget"));
  EXPECT_THAT(one, Not(HasSubstr("0/0")));
  v1::JobStatus& other = *daemon_.status.add_jobs();
  other = HealthyJob();
  other.set_job("other");
  const std::string both = TextOf(RunStatus({.query = Options()}, kPlain));
  EXPECT_THAT(both, ContainsRegex("train +RECOVERING \\(stuck\\) +12.0 s +- +- "));
  EXPECT_THAT(
      both,
      HasSubstr("train: stuck for 3m 20s: start the job again, or end it with eplbctl forget"));
  const std::string jobs = RunGetJobs({.query = Options()}, Terminal{.width = 160}).out;
  EXPECT_THAT(jobs, ContainsRegex("train +RECOVERING \\(stuck\\) .* - +3 "));
  const auto json = nlohmann::json::parse(
      TextOf(RunStatus({.query = Options(Format::kJson)}, kPlain)))["jobs"][0];
  EXPECT_TRUE(json["step"].is_null());
  EXPECT_TRUE(json["world_size"].is_null());
}

TEST_F(QueryTest, OneJobOrOnlyNamesCanBeAskedFor) {
  v1::JobStatus& other = *daemon_.status.add_jobs();
  other = HealthyJob();
  other.set_job("other");
  const std::string one = RunGetJobs({.query = Options(), .job = "other"}, kPlain).out;
  EXPECT_THAT(one, HasSubstr("other"));
  EXPECT_THAT(one, Not(HasSubstr("train")));
  EXPECT_EQ(RunGetJobs({.query = Options(), .job = "nobody"}, kPlain).exit_code, kNotFound);
  // A shell may expand what completion reads: a name that no job can have is left out.
  daemon_.status.add_jobs()->set_job("$(touch x)");
  EXPECT_EQ(RunGetJobs({.query = Options(), .names = true}, kPlain).out, "other\n");
}

TEST_F(QueryTest, TheTableOfJobsFitsIntoATerminal) {
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.set_job(std::string(100, 'j'));
  job.mutable_policy()->set_mode("observe");
  const std::string jobs = RunGetJobs({.query = Options()}, kPlain).out;
  EXPECT_TRUE(FitsInto(jobs, 100)) << jobs;
  EXPECT_THAT(RunGetJobs({.query = Options()}, Terminal{.width = 160}).out, HasSubstr("run id\n"));
}

TEST_F(QueryTest, APlacementComesAsTableAsJsonAndAsFile) {
  const std::string table = TextOf(RunGetPlacement(Placed("train"), kPlain));
  EXPECT_THAT(table, Says("version 3", "0* 2"));
  const absl::StatusOr<wire::JsonValue> json =
      wire::ParseJson(RunGetPlacement(Placed("train", Format::kJson), kPlain).out);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*wire::GetInteger(*json, "version"), 3);
  EXPECT_EQ(*wire::GetString(*json, "digest"), DigestOf(ExampleAfter()).Hex());
  EXPECT_EQ(*wire::PlacementFromJson(*json->Find("placement")), ExampleAfter());
  GetOptions to_file = Placed("train");
  to_file.out = Path("p.json");
  EXPECT_EQ(RunGetPlacement(to_file, kPlain).exit_code, kOk);
  EXPECT_EQ(*ReadPlacementFile(Path("p.json")), ExampleAfter());
}

TEST_F(QueryTest, APlacementOfALargeJobFitsIntoATerminal) {
  daemon_.placements.at(3) = Placement::Static(*Topology::Make({.num_layers = 128,
                                                                .num_experts = 2048,
                                                                .num_slots = 2304,
                                                                .num_gpus = 2304,
                                                                .num_nodes = 288}));
  const std::string output = TextOf(RunGetPlacement(Placed("train"), kPlain));
  EXPECT_THAT(output, HasSubstr("128 layers of 2,048 experts in 2,304 slots"));
  EXPECT_TRUE(FitsInto(output, 80)) << output.substr(0, 500);
}

TEST_F(QueryTest, AnUnknownJobIsNotFoundWithNothingOnStdout) {
  const Output output = RunGetPlacement(Placed("nobody"), kPlain);
  EXPECT_EQ(output.exit_code, kNotFound);
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.message, "no job nobody");
}

TEST_F(QueryTest, AnEarlierVersionIsToldWhileItIsKept) {
  GetOptions options = Placed("train", Format::kJson);
  options.version = 1;
  EXPECT_THAT(RunGetPlacement(options, kPlain).out, HasSubstr(R"("version":1,)"));
  options.version = 2;
  const Output output = RunGetPlacement(options, kPlain);
  EXPECT_EQ(output.exit_code, kNotFound);
  EXPECT_EQ(output.message, "no such version is kept");
}

TEST_F(QueryTest, ALayerOutsideTheJobIsRefused) {
  GetOptions options = Placed("train");
  options.layer = 2;
  EXPECT_EQ(RunGetPlacement(options, kPlain).exit_code, kUsage);
}

TEST_F(QueryTest, ABrokenAnswerIsAnError) {
  daemon_.whole = false;
  const Output output = RunGetPlacement(Placed("train"), kPlain);
  EXPECT_EQ(output.exit_code, kError);
  EXPECT_THAT(output.message, HasSubstr("the daemon's answer is no placement"));
}

TEST_F(QueryTest, NobodyThereIsUnreachable) {
  QueryOptions options = Options();
  options.endpoint = "unix:" + Path("no.sock");
  const Output output = RunStatus({.query = options}, kPlain);
  EXPECT_EQ(output.exit_code, kUnreachable);
  EXPECT_THAT(output.message, StartsWith("cannot reach unix:"));
}

TEST_F(QueryTest, ASilentDaemonIsATimeout) {
  daemon_.answers = 0;
  QueryOptions options = Options();
  options.timeout = "300ms";
  const Output output = RunStatus({.query = options}, kPlain);
  EXPECT_EQ(output.exit_code, kTimeout);
  EXPECT_EQ(output.message, "no answer from " + daemon_.endpoint() + " within 300ms");
}

TEST_F(QueryTest, RefusalsHaveTheirOwnExitCodes) {
  const std::pair<grpc::StatusCode, int> cases[] = {
      {grpc::StatusCode::PERMISSION_DENIED, kDenied},
      {grpc::StatusCode::UNAUTHENTICATED, kDenied},
      {grpc::StatusCode::FAILED_PRECONDITION, kConflict},
      {grpc::StatusCode::INVALID_ARGUMENT, kUsage},
      {grpc::StatusCode::INTERNAL, kError}};
  for (const auto& [code, exit_code] : cases) {
    daemon_.failure = {code, "because"};
    EXPECT_EQ(RunStatus({.query = Options()}, kPlain).exit_code, exit_code) << code;
  }
}

TEST_F(QueryTest, TimeoutsThatCannotBeMeantAreRefused) {
  for (const char* bad : {"", "0", "-1", "x", "5 x", "inf", "nan", "1e9", "2h"}) {
    QueryOptions options = Options();
    options.timeout = bad;
    EXPECT_EQ(RunStatus({.query = options}, kPlain).exit_code, kUsage) << bad;
  }
}

TEST_F(QueryTest, RunsStallsRefusalsAndWarningsAreInTextAndJson) {
  v1::JobStatus& job = *daemon_.status.mutable_jobs(0);
  job.set_run_number(4);
  job.set_term(7);
  job.set_stalled("windows");
  job.set_stalled_reason("rank 1 is 2000 steps behind with its reports");
  job.set_step_seconds(0.25);
  job.set_coverage_now(0.75);
  job.mutable_candidate()->set_run_id("run-2");
  job.set_refused_hellos(3);
  daemon_.status.add_warnings("1024 descriptors are too few for limits.max_sessions = 20000");
  v1::Refusal& refusal = *daemon_.status.add_refusals();
  refusal.set_job("j65");
  refusal.set_reason("the daemon already knows 64 jobs");
  refusal.set_count(8);
  for (const int width : {80, 160}) {
    const std::string status = RunStatus({.query = Options()}, {.width = width}).out;
    for (const char* word : {"warning: 1024 descriptors", "STALLED (windows): rank 1 is 2000",
                             "a newer run, run-2,", "j65 is not served: the daemon already"}) {
      EXPECT_THAT(status, HasSubstr(word)) << width;
    }
    EXPECT_TRUE(FitsInto(status, static_cast<size_t>(width))) << status;
    const std::string jobs = RunGetJobs({.query = Options()}, {.width = width}).out;
    EXPECT_TRUE(FitsInto(jobs, 120)) << jobs;
    EXPECT_THAT(status + jobs, HasSubstr("(stalled)"));
  }
  const std::string json = RunStatus({.query = Options(Format::kJson)}, kPlain).out;
  EXPECT_THAT(
      json,
      Says(R"("stalled":"windows","stalled_reason":"rank 1 is 2000 steps behind with its reports")",
           R"("step_seconds":0.25)", R"("coverage_now":0.75)", R"("run_number":4,"term":7)",
           R"("candidate":{"run_id":"run-2",)", R"("refused_hellos":3)",
           R"("warnings":["1024 descriptors)", R"("refusals":[{"job":"j65",)"));
}

}  // namespace
}  // namespace eplb::cli
