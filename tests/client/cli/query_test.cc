// status and get against a daemon's Query service in this process.
#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include "client/cli/get.h"
#include "client/cli/status.h"
#include "client/files/placement_file.h"
#include "proto/wire/convert.h"
#include "proto/wire/json_value.h"
#include "proto/wire/placement_json.h"
#include "tests/client/files/test_files.h"

#include "eplb/v1/query.grpc.pb.h"

namespace eplb::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr Terminal kTerminal{.width = 80, .colour = false, .unicode = false};

Placement Example() {
  return Placement::Static(
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 6, .num_gpus = 3}));
}

v1::JobStatus ExampleJob() {
  v1::JobStatus job;
  job.set_job("train\x1b[31m");
  job.set_incarnation("a1");
  job.set_state("PREPARING");
  job.set_state_seconds(12);
  job.set_waiting_for("ranks 3, 5 to be ready");
  job.mutable_shape()->set_num_layers(2);
  job.mutable_shape()->set_num_experts(4);
  job.set_world_size(8);
  job.set_connected_ranks(7);
  job.set_step(12345);
  job.set_version(3);
  job.set_digest(std::string(32, '\xab'));
  job.set_balancedness(0.75);
  job.set_last_reason(
      "moved 12 experts because the predicted sum of peak loads falls by 8.1 %, more than the 5 % "
      "that policy.min_gain asks for");
  job.add_ranks()->set_rank(0);
  return job;
}

// One daemon with one job; what it answers is set by the test.
class Daemon final : public v1::Query::Service {
 public:
  Daemon() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    status_.set_server_version("0.1.0");
    status_.set_uptime_seconds(7500);
    status_.set_ready(true);
  }
  ~Daemon() override { server_->Shutdown(); }

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  v1::GetStatusResponse& status() { return status_; }
  void FailWith(grpc::StatusCode code) { failure_ = grpc::Status(code, "because"); }
  void NeverAnswer() { answers_ = false; }
  void BreakPlacement() { whole_ = false; }

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* /*request*/,
                         v1::GetStatusResponse* response) override {
    // Ends when the client's deadline cancels the call.
    while (!answers_ && !context->IsCancelled()) never_.WaitForNotificationWithTimeout(kTick);
    *response = status_;
    return failure_;
  }
  grpc::Status GetPlacement(grpc::ServerContext* /*context*/,
                            const v1::GetPlacementRequest* request,
                            v1::GetPlacementResponse* response) override {
    if (request->job() != "train") {
      return {grpc::StatusCode::NOT_FOUND, "no job " + request->job()};
    }
    wire::ToProto(Example(), 3, response->mutable_placement());
    if (!whole_) response->mutable_placement()->mutable_layers()->RemoveLast();
    return grpc::Status::OK;
  }

 private:
  static constexpr absl::Duration kTick = absl::Milliseconds(5);
  int port_ = 0;
  bool answers_ = true;
  bool whole_ = true;
  grpc::Status failure_;
  v1::GetStatusResponse status_;
  absl::Notification never_;
  std::unique_ptr<grpc::Server> server_;
};

class QueryTest : public FilesTest {
 protected:
  QueryOptions Options(Format format = Format::kTable) const {
    return {.endpoint = daemon_.endpoint(), .timeout = "5s", .format = format};
  }
  GetPlacementOptions Placed(const std::string& job, Format format = Format::kTable) const {
    return {.query = Options(format), .job = job, .out = {}};
  }
  Daemon daemon_;
};

TEST_F(QueryTest, StatusTellsTheDaemonAndEachJob) {
  *daemon_.status().add_jobs() = ExampleJob();
  const Output output = RunStatus(Options(), kTerminal);
  EXPECT_EQ(output.exit_code, kOk) << output.message;
  EXPECT_THAT(output.out, StartsWith("eplbd 0.1.0, up 2h 05m, term 0, ready\n"));
  for (const char* word : {"PREPARING", "7/8", "12,345", "0.7500", "waits for: ranks 3, 5",
                           "last decision: moved 12 experts"}) {
    EXPECT_THAT(output.out, HasSubstr(word));
  }
  EXPECT_THAT(output.out, Not(HasSubstr("\x1b")));
  size_t start = 0;
  for (size_t end = 0; (end = output.out.find('\n', start)) != std::string::npos; start = end + 1) {
    EXPECT_LE(end - start, 80U) << output.out.substr(start, end - start);
  }
}

TEST_F(QueryTest, StatusWithoutJobsOrReadinessSaysSo) {
  daemon_.status().set_ready(false);
  daemon_.status().set_not_ready_reason("the store cannot be written");
  const Output output = RunStatus(Options(), kTerminal);
  EXPECT_THAT(output.out, HasSubstr("not ready\nthe store cannot be written\n"));
  EXPECT_THAT(output.out, EndsWith("no job has connected yet\n"));
}

TEST_F(QueryTest, StatusAndJobsAsJsonKeepEveryField) {
  *daemon_.status().add_jobs() = ExampleJob();
  const absl::StatusOr<wire::JsonValue> status =
      wire::ParseJson(RunStatus(Options(Format::kJson), kTerminal).out);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->Find("uptime_seconds")->real, 7500);
  const std::string jobs = RunGetJobs(Options(Format::kJson), kTerminal).out;
  for (const char* word :
       {R"("job":"train\u001b[31m")", R"("connected_ranks":7)", R"("digest":"abababab)",
        R"("balancedness":0.75)", R"("ranks":[{"rank")"}) {
    EXPECT_THAT(jobs, HasSubstr(word));
  }
  EXPECT_THAT(RunGetJobs(Options(), kTerminal).out, HasSubstr("incarnation"));
}

TEST_F(QueryTest, APlacementComesAsTableAsJsonAndAsFile) {
  const Output table = RunGetPlacement(Placed("train"), kTerminal);
  EXPECT_EQ(table.exit_code, kOk) << table.message;
  EXPECT_THAT(table.out, HasSubstr("version 3"));
  EXPECT_THAT(table.out, HasSubstr("0* 1*"));
  const absl::StatusOr<wire::JsonValue> json =
      wire::ParseJson(RunGetPlacement(Placed("train", Format::kJson), kTerminal).out);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(*wire::GetInteger(*json, "version"), 3);
  EXPECT_EQ(*wire::GetString(*json, "digest"), DigestOf(Example()).Hex());
  EXPECT_EQ(*wire::PlacementFromJson(*json->Find("placement")), Example());
  GetPlacementOptions to_file = Placed("train");
  to_file.out = Path("p.json");
  EXPECT_EQ(RunGetPlacement(to_file, kTerminal).exit_code, kOk);
  EXPECT_EQ(*ReadPlacementFile(Path("p.json")), Example());
}

TEST_F(QueryTest, AnUnknownJobIsNotFoundWithNothingOnStdout) {
  const Output output = RunGetPlacement(Placed("nobody"), kTerminal);
  EXPECT_EQ(output.exit_code, kNotFound);
  EXPECT_EQ(output.out, "");
  EXPECT_EQ(output.message, "no job nobody");
}

TEST_F(QueryTest, ALayerOutsideTheJobIsRefused) {
  GetPlacementOptions options = Placed("train");
  options.layer = 2;
  EXPECT_EQ(RunGetPlacement(options, kTerminal).exit_code, kUsage);
}

TEST_F(QueryTest, ABrokenAnswerIsAnError) {
  daemon_.BreakPlacement();
  const Output output = RunGetPlacement(Placed("train"), kTerminal);
  EXPECT_EQ(output.exit_code, kError);
  EXPECT_THAT(output.message, HasSubstr("the daemon's answer is no placement"));
}

TEST_F(QueryTest, NobodyThereIsUnreachable) {
  QueryOptions options = Options();
  options.endpoint = "unix:" + Path("no.sock");
  const Output output = RunStatus(options, kTerminal);
  EXPECT_EQ(output.exit_code, kUnreachable);
  EXPECT_THAT(output.message, StartsWith("cannot reach unix:"));
}

TEST_F(QueryTest, ASilentDaemonIsATimeout) {
  daemon_.NeverAnswer();
  QueryOptions options = Options();
  options.timeout = "300ms";
  const Output output = RunStatus(options, kTerminal);
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
    daemon_.FailWith(code);
    EXPECT_EQ(RunStatus(Options(), kTerminal).exit_code, exit_code) << code;
  }
}

TEST_F(QueryTest, TimeoutsThatCannotBeMeantAreRefused) {
  for (const char* bad : {"", "0", "-1", "x", "5 s", "inf", "nan", "1e9", "2h"}) {
    QueryOptions options = Options();
    options.timeout = bad;
    EXPECT_EQ(RunStatus(options, kTerminal).exit_code, kUsage) << bad;
  }
}

}  // namespace
}  // namespace eplb::cli
