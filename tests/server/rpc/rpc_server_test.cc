#include "server/rpc/rpc_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include <grpcpp/generic/generic_stub.h>

#include "server/process/log.h"
#include "tests/server/rpc/served_test.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

using RpcServerTest = ServedTest;

// Asks grpc.health.v1 without its .proto, because its messages have one field each. Returns
// "SERVING", "NOT_SERVING", or the error of the call.
std::string AskHealth(const std::shared_ptr<grpc::Channel>& channel) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const grpc::Slice empty;  // the request for the server as a whole
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                          grpc::ByteBuffer(&empty, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  int tag = 0;
  call->Finish(&response, &status, &tag);
  void* done = nullptr;
  bool ok = false;
  (void)queue.Next(&done, &ok);
  if (!status.ok()) return status.error_message();
  grpc::Slice bytes;
  if (!response.DumpToSingleSlice(&bytes).ok() || bytes.size() != 2) return "not a health answer";
  // Field 1, varint: 1 = SERVING, 2 = NOT_SERVING.
  return bytes.begin()[1] == 1 ? "SERVING" : "NOT_SERVING";
}

// A message of a rank of a later version: field 40 with the bytes "later".
v1::Up LaterMessage() {
  v1::Up later;
  EXPECT_TRUE(later.ParseFromString(std::string("\xc2\x02\x05later", 8)));
  return later;
}

TEST_F(RpcServerTest, GoodbyeEndsTheStreamWithOk) {
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);
  ASSERT_TRUE(rank->Say(wire::Goodbye{.reason = "finished", .missing_ranks = {}, .failed = false}));
  ASSERT_TRUE(rank->stream()->WritesDone());
  EXPECT_TRUE(rank->End().ok());
  EXPECT_TRUE(runner_->sessions().WaitUntilEmpty(absl::Seconds(20)));
}

TEST_F(RpcServerTest, AStreamThatEndsWithoutGoodbyeMayComeBack) {
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);
  ASSERT_TRUE(rank->stream()->WritesDone());
  const grpc::Status status = rank->End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("without Goodbye"));
}

TEST_F(RpcServerTest, AMalformedMessageIsInvalidArgumentNamingTheField) {
  Start();
  const std::unique_ptr<RankStream> rank = Connect();
  v1::Up up;
  wire::ToProto(HelloOf(0, 1), &up);
  up.mutable_hello()->set_running_digest("short");
  ASSERT_TRUE(rank->stream()->Write(up));
  const grpc::Status status = rank->End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("running_digest"));
}

TEST_F(RpcServerTest, AFirstMessageOtherThanHelloIsRefused) {
  Start();
  v1::Up report;
  wire::ToProto(ReportOf(0), &report);
  for (const v1::Up& first : {v1::Up(), report, LaterMessage()}) {
    const std::unique_ptr<RankStream> rank = Connect();
    ASSERT_TRUE(rank->stream()->Write(first));
    const grpc::Status status = rank->End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("must be Hello"));
  }
}

TEST_F(RpcServerTest, MessagesOfALaterKindAreSkippedAndCountedAndTheStreamGoesOn) {
  Start();
  const std::unique_ptr<RankStream> ranks[] = {Join(0), Join(1)};
  ::testing::internal::CaptureStderr();
  StartLog("warn", LogFormat::kJson);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ranks[0]->stream()->Write(LaterMessage()));
  for (const std::unique_ptr<RankStream>& rank : ranks) ASSERT_TRUE(rank->Say(ReportOf(0)));
  EXPECT_TRUE(ranks[0]->Hear<wire::Propose>().has_value());
  StopLog();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(server_->refusals(Refusal::kUnknownMessage), 3);
  const size_t told = log.find("of the unknown kind 40");
  EXPECT_NE(told, std::string::npos) << log;
  EXPECT_EQ(log.find("of the unknown kind 40", told + 1), std::string::npos) << log;
}

TEST_F(RpcServerTest, ALostRankIsRemoved) {
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);
  rank->Cancel();
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(runner_->sessions().WaitUntilEmpty(absl::Seconds(20)));
}

TEST_F(RpcServerTest, AFloodOfReportsIsDroppedAndCountedAndTheStreamLives) {
  queue_.max_events = 16;
  messages_per_second_ = 20;
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);
  constexpr int kReports = 3000;
  for (int i = 0; i < kReports; ++i) ASSERT_TRUE(rank->Say(ReportOf(int64_t{kReportEvery} * i)));
  ASSERT_TRUE(rank->stream()->WritesDone());
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::UNAVAILABLE);  // no Goodbye, not more
  EXPECT_GT(runner_->dropped_reports() + runner_->limited_reports(), kReports / 2);
  EXPECT_GT(runner_->limited_reports(), 0);
}

TEST_F(RpcServerTest, ABacklogOfReportsWaitsInTheNetworkAndNoneIsLost) {
  queue_.max_events = 64;
  messages_per_second_ = 1000000;
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);
  constexpr int kReports = 3000;
  for (int i = 0; i < kReports; ++i) ASSERT_TRUE(rank->Say(ReportOf(int64_t{kReportEvery} * i)));
  ASSERT_TRUE(rank->Say(wire::Goodbye{}));
  EXPECT_TRUE(rank->End().ok());
  EXPECT_EQ(runner_->Counters().core.reports, kReports);
  EXPECT_EQ(runner_->dropped_reports(), 0);
}

TEST_F(RpcServerTest, AFloodOfOtherMessagesEndsItsStream) {
  messages_per_second_ = 20;
  Start();
  const std::unique_ptr<RankStream> rank = Join(0);
  const wire::Failed failed;  // message about a version that was given out
  for (int i = 0; i < 1000 && rank->Say(failed); ++i) continue;
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RpcServerTest, ARankThatNeverReadsDoesNotHoldUpAnother) {
  Start();
  const std::unique_ptr<RankStream> silent = Join(0);
  const std::unique_ptr<RankStream> reading = Join(1);
  // More than any flow-control window: the silent rank's write stays at work, its mailbox holds one
  // message of the kind, and the other rank still gets what is sent after all of it.
  wire::Cancel cancel;
  cancel.reason = std::string(1 << 20, 'x');
  for (int64_t version = 1; version <= 20; ++version) {
    cancel.version = version;
    runner_->sessions().Send(1, cancel);
  }
  runner_->sessions().Send(2, wire::SetReportInterval{.report_every = 77});
  const std::optional<wire::SetReportInterval> pace = reading->Hear<wire::SetReportInterval>();
  ASSERT_TRUE(pace.has_value());
  EXPECT_EQ(pace->report_every, 77);
  // Latest wins: whatever was skipped, the newest one arrives once the rank reads again.
  int64_t newest = 0;
  while (newest < 20) {
    const std::optional<wire::Cancel> heard = silent->Hear<wire::Cancel>();
    ASSERT_TRUE(heard.has_value());
    ASSERT_GT(heard->version, newest);
    newest = heard->version;
  }
}

TEST_F(RpcServerTest, ARankThatNeverReadsIsCancelledAfterItsStreamWasClosed) {
  Start();
  const std::unique_ptr<RankStream> silent = Join(0);
  wire::Cancel cancel;
  cancel.reason = std::string(1 << 20, 'x');
  runner_->sessions().Send(1, cancel);
  runner_->sessions().Close(1, absl::AbortedError("over"));
  runner_->sessions().Expire(absl::Now());
  runner_->sessions().Expire(absl::Now() + Sessions::kCloseDeadline + absl::Seconds(1));
  EXPECT_TRUE(runner_->sessions().WaitUntilEmpty(absl::Seconds(20)));
}

TEST_F(RpcServerTest, ThreeRanksAllGatherTheirBlobs) {
  Start();
  Answered<v1::AllGatherResponse> answers[3];
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] { answers[rank] = AllGather(rank, 3); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Answered<v1::AllGatherResponse>& answer : answers) {
    ASSERT_TRUE(answer.ok()) << answer.status.error_message();
    ASSERT_EQ(answer.body.blobs_size(), 3);
    EXPECT_EQ(answer.body.blobs(2), "blob2");
  }
}

TEST_F(RpcServerTest, AnAllGatherPastItsDeadlineNamesTheMissingRank) {
  RpcOptions options;
  options.rendezvous.deadline = absl::Milliseconds(1);
  Start({.host = "127.0.0.1"}, options);
  const grpc::Status status = AllGather(0, 2).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 1 of 2 did not call"));
}

TEST_F(RpcServerTest, AnAllGatherWithANumberThatNoRankHasIsInvalid) {
  Start();
  EXPECT_EQ(AllGather(-1, 2).code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcServerTest, HealthIsServingUntilTheDrain) {
  Start();
  EXPECT_EQ(AskHealth(channel_), "SERVING");
  server_->StopServing();
  EXPECT_EQ(AskHealth(channel_), "NOT_SERVING");
  const std::unique_ptr<RankStream> late = Connect();
  EXPECT_EQ(late->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(AllGather(0, 1).code(), grpc::StatusCode::UNAVAILABLE);
}

// Under either mask of the process, and without a moment of another mode: its change would be told.
TEST_F(RpcServerTest, AUnixSocketIsMadeForItsOwnerOrItsGroup) {
  const Folder folder;
  const int changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(changes, folder.File("").c_str(), IN_ATTRIB | IN_MOVED_TO), 0);
  for (const bool for_group : {false, true}) {
    for (const mode_t mask : {mode_t{0}, mode_t{077}}) {
      const mode_t before = umask(mask);
      const std::string path = folder.File(absl::StrCat(mask, for_group, ".sock"));
      Start({.unix_path = path}, {.unix_socket_for_group = for_group});
      EXPECT_EQ(umask(before), mask) << "the process has its mask back";
      struct stat info {};
      ASSERT_EQ(stat(path.c_str(), &info), 0);
      EXPECT_EQ(info.st_mode & 0777U, for_group ? 0660U : 0600U);
      std::array<char, 4096> told{};
      EXPECT_LT(read(changes, told.data(), told.size()), 0);
      server_.reset();
    }
  }
  (void)close(changes);
}

class SocketBesideTest : public SocketServedTest {
 protected:
  // Returns the answer to another daemon that wants `path_` as well.
  absl::Status StartAnother() {
    RpcOptions options{.listen = {.host = "127.0.0.1"}, .unix_socket = path_};
    options.runner = runner_.get();
    return RpcServer::Start(std::move(options)).status();
  }
  bool Answers() const {
    const auto channel = grpc::CreateChannel("unix:" + path_, grpc::InsecureChannelCredentials());
    return Call(*v1::Query::NewStub(channel), &v1::Query::Stub::GetStatus, v1::GetStatusRequest())
        .ok();
  }
};

TEST_F(SocketBesideTest, AUnixSocketIsServedAndNotTakenAway) {
  Start({.unix_path = path_});
  EXPECT_EQ(server_->address().Text(), "unix:" + path_);
  (void)Join(0);
  RpcOptions second;
  second.listen = server_->address();
  second.runner = runner_.get();
  EXPECT_EQ(
      RpcServer::Start(second).status(),
      absl::UnavailableError("cannot listen on unix:" + path_ + ": another process serves there"));
}

TEST_F(SocketBesideTest, BothAddressesAreServedAndTheSocketIsItsOwnersAlone) {
  Start({.host = "127.0.0.1"}, {.unix_socket = path_});
  EXPECT_EQ(server_->unix_socket(), path_);
  EXPECT_TRUE(Answers());
  (void)Join(0);
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0600U);
  server_.reset();
  EXPECT_NE(stat(path_.c_str(), &info), 0) << "a clean end leaves no socket";
}

TEST_F(SocketBesideTest, ADeadDaemonsSocketIsReplaced) {
  const int dead = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(dead, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  (void)close(dead);
  Start({.host = "127.0.0.1"}, {.unix_socket = path_});
  EXPECT_TRUE(Answers());
}

TEST_F(SocketBesideTest, AnotherDaemonsSocketIsNotTaken) {
  Start({.host = "127.0.0.1"}, {.unix_socket = path_});
  EXPECT_EQ(StartAnother(),
            absl::UnavailableError(
                absl::StrCat(path_, ": another eplbd listens there (it holds ", path_, ".lock)")));
  EXPECT_TRUE(Answers());
}

TEST_F(SocketBesideTest, AFileThatIsNoSocketIsLeftAlone) {
  std::ofstream(path_) << "mine";
  Start({.host = "127.0.0.1"}, {.unix_socket = path_, .unix_socket_optional = true});
  EXPECT_EQ(server_->unix_socket(), "") << "it was only chosen: the daemon goes on without";
  EXPECT_EQ(StartAnother(), absl::UnavailableError(absl::StrCat("cannot listen on unix:", path_,
                                                                ": it is there and is no socket")));
  EXPECT_TRUE(std::filesystem::is_regular_file(path_));
}

}  // namespace
}  // namespace eplb
