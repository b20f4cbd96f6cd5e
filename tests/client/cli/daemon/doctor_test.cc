#include "client/cli/daemon/doctor.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "client/cli/daemon/checks.h"
#include "client/files/placement_file.h"
#include "tests/client/cli/daemon/scripted_query.h"
#include "tests/client/files/test_files.h"

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using Result = Check::Result;

v1::JobStatus HealthyJob() {
  v1::JobStatus job = ExampleJob();
  job.set_state("IDLE");
  job.set_state_seconds(3600);
  job.clear_waiting_for();
  job.set_world_size(1);
  job.set_connected_ranks(1);
  job.set_coverage(1);
  job.mutable_ranks(0)->set_library_version("0.1.0");
  return job;
}

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

TEST(ChecksTest, QuarantineFailsAndALongStateWarns) {
  v1::JobStatus job = HealthyJob();
  job.set_state("QUARANTINE");
  job.set_last_reason("ranks 0 and 3 run different digests");
  EXPECT_EQ(One(job, "state").result, Result::kFailed);
  EXPECT_THAT(One(job, "state").detail, HasSubstr("eplbctl resume"));
  job.set_state("HELD");
  EXPECT_EQ(One(job, "state").result, Result::kWarning);
  job.set_state_seconds(5);
  EXPECT_EQ(One(job, "state").result, Result::kOk);
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
  job.set_state("RESOLVING");
  EXPECT_EQ(One(job, "agreement").result, Result::kWarning);
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
  plans.add_plans()->set_result("kept");
  EXPECT_EQ(One(job, "decisions", plans).result, Result::kOk);
  plans.mutable_plans(0)->set_result("withdrawn");
  EXPECT_EQ(One(job, "decisions", plans).result, Result::kWarning);
  job.set_paused(true);
  EXPECT_THAT(One(job, "decisions").detail, HasSubstr("paused"));
}

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

TEST_F(DoctorTest, AnUnknownJobIsNotFound) {
  DoctorOptions options = Options();
  options.job = "nobody";
  EXPECT_EQ(RunDoctor(options, kPlain).exit_code, kNotFound);
}

TEST_F(DoctorTest, LogsOfARunAreCheckedByTheValidator) {
  const std::string digest = DigestOf(ExampleBefore()).Hex();
  const auto log = [&digest](int64_t steps_version) {
    return absl::StrCat(
        R"({"event":"start","rank":0,"incarnation":"a","step":0,"version":0,"digest":")", digest,
        "\"}\n", R"({"event":"steps","rank":0,"incarnation":"a","step":0,"last_step":9,"version":)",
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

}  // namespace
}  // namespace eplb::cli
