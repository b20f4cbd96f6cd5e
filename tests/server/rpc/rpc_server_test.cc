#include "server/rpc/rpc_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>

#include "proto/wire/convert.h"
#include "tests/server/failing_store.h"
#include "tests/server/rpc/health_stub.h"
#include "tests/server/test_stream.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kCallDeadline = std::chrono::seconds(20);

// A rank: one stream with blocking reads and writes, each under the call's deadline.
class Rank {
 public:
  explicit Rank(v1::Balancer::Stub* stub) {
    context_.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    stream_ = stub->Session(&context_);
  }
  bool Say(const wire::UpMessage& message) {
    v1::Up up;
    wire::ToProto(message, &up);
    return stream_->Write(up);
  }
  // The next message of this kind; others before it are skipped.
  template <class Message>
  std::optional<Message> Hear() {
    v1::Down down;
    while (stream_->Read(&down)) {
      const absl::StatusOr<wire::DownMessage> message = wire::FromProto(down);
      if (!message.ok()) return std::nullopt;
      if (const auto* wanted = std::get_if<Message>(&*message)) return *wanted;
    }
    return std::nullopt;
  }
  grpc::Status End() {
    v1::Down down;
    while (stream_->Read(&down)) continue;
    return stream_->Finish();
  }
  grpc::ClientReaderWriter<v1::Up, v1::Down>* stream() { return stream_.get(); }
  void Cancel() { context_.TryCancel(); }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream_;
};

class RpcServerTest : public ::testing::Test {
 protected:
  void Start(Address listen = {.host = "127.0.0.1"}, RpcOptions options = {}) {
    RunnerOptions runner;
    runner.core.policy_every_steps = kReportEvery;
    runner.core.server_version = "test";
    runner.queue = queue_;
    auto store = std::make_unique<FailingStore>();
    store_ = store.get();
    runner_ = *Runner::Start(runner, std::move(store));
    options.listen = std::move(listen);
    options.runner = runner_.get();
    options.server_version = "test";
    options.messages_per_second = messages_per_second_;
    absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address().Text(), grpc::InsecureChannelCredentials());
    balancer_ = v1::Balancer::NewStub(channel_);
    query_ = v1::Query::NewStub(channel_);
  }
  std::unique_ptr<Rank> Connect() { return std::make_unique<Rank>(balancer_.get()); }
  std::unique_ptr<Rank> Join(int32_t rank) {
    std::unique_ptr<Rank> stream = Connect();
    EXPECT_TRUE(stream->Say(HelloOf(rank, 100 + rank)));
    EXPECT_TRUE(stream->Hear<wire::Welcome>().has_value());
    return stream;
  }
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  }
  grpc::Status Exchange(int32_t rank, int32_t world_size, v1::ExchangeResponse* response) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ExchangeRequest request;
    request.set_job("job");
    request.set_key("start");
    request.set_rank(static_cast<uint32_t>(rank));
    request.set_world_size(static_cast<uint32_t>(world_size));
    request.set_nonce(7);
    request.set_blob(absl::StrCat("blob", rank));
    return balancer_->Exchange(&context, request, response);
  }

  // "Query/GetJob OK 2"
  std::vector<std::string> Calls() const {
    std::vector<std::string> calls;
    for (const RpcTimes::Series& one : server_->rpc_times()) {
      calls.push_back(absl::StrCat(one.method, " ", one.code, " ", one.seconds.total()));
    }
    return calls;
  }

  EventQueue::Limits queue_ = {};
  int32_t messages_per_second_ = 1000;
  FailingStore* store_ = nullptr;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Balancer::Stub> balancer_;
  std::unique_ptr<v1::Query::Stub> query_;
};

TEST_F(RpcServerTest, HelloIsAnsweredByWelcomeWithTermAndVersion) {
  Start();
  const std::unique_ptr<Rank> rank = Connect();
  ASSERT_TRUE(rank->Say(HelloOf(0, 1)));
  const std::optional<wire::Welcome> welcome = rank->Hear<wire::Welcome>();
  ASSERT_TRUE(welcome.has_value());
  EXPECT_EQ(welcome->term, 1);
  EXPECT_EQ(welcome->server_version, "test");
}

TEST_F(RpcServerTest, GoodbyeEndsTheStreamWithOk) {
  Start();
  const std::unique_ptr<Rank> rank = Join(0);
  ASSERT_TRUE(rank->Say(wire::Goodbye{.reason = "finished", .missing_ranks = {}, .failed = false}));
  ASSERT_TRUE(rank->stream()->WritesDone());
  EXPECT_TRUE(rank->End().ok());
  EXPECT_TRUE(runner_->sessions().WaitUntilEmpty(absl::Seconds(20)));
}

TEST_F(RpcServerTest, AStreamThatEndsWithoutGoodbyeMayComeBack) {
  Start();
  const std::unique_ptr<Rank> rank = Join(0);
  ASSERT_TRUE(rank->stream()->WritesDone());
  const grpc::Status status = rank->End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("without Goodbye"));
}

TEST_F(RpcServerTest, AMalformedMessageIsInvalidArgumentNamingTheField) {
  Start();
  const std::unique_ptr<Rank> rank = Connect();
  v1::Up up;
  wire::ToProto(HelloOf(0, 1), &up);
  up.mutable_hello()->set_running_digest("short");
  ASSERT_TRUE(rank->stream()->Write(up));
  const grpc::Status status = rank->End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("running_digest"));
}

TEST_F(RpcServerTest, AnEmptyMessageAndAFirstMessageOtherThanHelloAreRefused) {
  Start();
  const std::unique_ptr<Rank> empty = Connect();
  ASSERT_TRUE(empty->stream()->Write(v1::Up()));
  EXPECT_EQ(empty->End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  const std::unique_ptr<Rank> eager = Connect();
  ASSERT_TRUE(eager->Say(ReportOf(0)));
  EXPECT_FALSE(eager->End().ok());
}

TEST_F(RpcServerTest, AMessageAboveTheSizeLimitIsResourceExhausted) {
  Start();
  const std::unique_ptr<Rank> rank = Connect();
  v1::Up up;
  up.mutable_load_report()->set_counts_u32(std::string(RpcServer::kMaxReceiveBytes, '\0'));
  (void)rank->stream()->Write(up);
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RpcServerTest, AnotherProcessForALiveRankIsAlreadyExists) {
  Start();
  const std::unique_ptr<Rank> first = Join(0);
  const std::unique_ptr<Rank> second = Connect();
  ASSERT_TRUE(second->Say(HelloOf(0, 999)));
  EXPECT_EQ(second->End().error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(RpcServerTest, ReportsLeadToAProposalOnEveryRank) {
  Start();
  const std::unique_ptr<Rank> ranks[] = {Join(0), Join(1)};
  for (const std::unique_ptr<Rank>& rank : ranks) ASSERT_TRUE(rank->Say(ReportOf(0)));
  const std::optional<wire::Propose> first = ranks[0]->Hear<wire::Propose>();
  const std::optional<wire::Propose> second = ranks[1]->Hear<wire::Propose>();
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(first->digest, second->digest);
  EXPECT_EQ(first->layers, second->layers);
}

TEST_F(RpcServerTest, ALostRankIsRemoved) {
  Start();
  const std::unique_ptr<Rank> rank = Join(0);
  rank->Cancel();
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(runner_->sessions().WaitUntilEmpty(absl::Seconds(20)));
}

TEST_F(RpcServerTest, AFloodOfReportsIsDroppedAndCountedAndTheStreamLives) {
  queue_.max_events = 16;
  messages_per_second_ = 20;
  Start();
  const std::unique_ptr<Rank> rank = Join(0);
  constexpr int kReports = 3000;
  for (int i = 0; i < kReports; ++i) ASSERT_TRUE(rank->Say(ReportOf(int64_t{kReportEvery} * i)));
  ASSERT_TRUE(rank->stream()->WritesDone());
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::UNAVAILABLE);  // no Goodbye, not more
  EXPECT_GT(runner_->dropped_reports(), kReports / 2);
}

TEST_F(RpcServerTest, AFloodOfOtherMessagesEndsItsStream) {
  messages_per_second_ = 20;
  Start();
  const std::unique_ptr<Rank> rank = Join(0);
  wire::Failed failed;
  failed.version = 1;
  for (int i = 0; i < 1000 && rank->Say(failed); ++i) continue;
  EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(RpcServerTest, ARankThatNeverReadsDoesNotHoldUpAnother) {
  Start();
  const std::unique_ptr<Rank> silent = Join(0);
  const std::unique_ptr<Rank> reading = Join(1);
  // More than any flow-control window: the silent rank's write stays at work, its mailbox holds one
  // message of the kind, and the other rank still gets what is sent after all of it.
  wire::Retract retract;
  retract.reason = std::string(1 << 20, 'x');
  for (int64_t version = 1; version <= 20; ++version) {
    retract.version = version;
    runner_->sessions().Send(1, retract);
  }
  runner_->sessions().Send(2, wire::Pace{.report_every = 77});
  const std::optional<wire::Pace> pace = reading->Hear<wire::Pace>();
  ASSERT_TRUE(pace.has_value());
  EXPECT_EQ(pace->report_every, 77);
  // Latest wins: whatever was skipped, the newest one arrives once the rank reads again.
  int64_t newest = 0;
  while (newest < 20) {
    const std::optional<wire::Retract> heard = silent->Hear<wire::Retract>();
    ASSERT_TRUE(heard.has_value());
    ASSERT_GT(heard->version, newest);
    newest = heard->version;
  }
}

TEST_F(RpcServerTest, ARankThatNeverReadsIsCancelledAfterItsStreamWasClosed) {
  Start();
  const std::unique_ptr<Rank> silent = Join(0);
  wire::Retract retract;
  retract.reason = std::string(1 << 20, 'x');
  runner_->sessions().Send(1, retract);
  runner_->sessions().Close(1, absl::AbortedError("over"));
  runner_->sessions().Expire(absl::Now());
  runner_->sessions().Expire(absl::Now() + Sessions::kCloseDeadline + absl::Seconds(1));
  EXPECT_TRUE(runner_->sessions().WaitUntilEmpty(absl::Seconds(20)));
}

TEST_F(RpcServerTest, ThreeRanksExchangeTheirBlobs) {
  Start();
  v1::ExchangeResponse responses[3];
  grpc::Status statuses[3];
  std::vector<std::thread> threads;
  threads.reserve(3);
  for (int32_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = Exchange(rank, 3, &responses[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(statuses[rank].ok()) << statuses[rank].error_message();
    ASSERT_EQ(responses[rank].blobs_size(), 3);
    EXPECT_EQ(responses[rank].blobs(2), "blob2");
  }
}

TEST_F(RpcServerTest, AnExchangePastItsDeadlineNamesTheMissingRank) {
  RpcOptions options;
  options.rendezvous.deadline = absl::Milliseconds(1);
  Start({.host = "127.0.0.1"}, options);
  v1::ExchangeResponse response;
  const grpc::Status status = Exchange(0, 2, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 1 of 2 did not come"));
}

TEST_F(RpcServerTest, AnExchangeWithANumberThatNoRankHasIsInvalid) {
  Start();
  v1::ExchangeResponse response;
  EXPECT_EQ(Exchange(-1, 2, &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcServerTest, QueriesTellJobsPlacementAndEvents) {
  Start();
  const std::unique_ptr<Rank> ranks[] = {Join(0), Join(1)};
  v1::GetStatusResponse status;
  grpc::ClientContext first;
  SetDeadline(&first);
  ASSERT_TRUE(query_->GetStatus(&first, {}, &status).ok());
  EXPECT_EQ(status.server_version(), "test");
  EXPECT_EQ(status.term(), 1);
  EXPECT_TRUE(status.ready()) << status.not_ready_reason();
  ASSERT_EQ(status.jobs_size(), 1);
  EXPECT_EQ(status.jobs(0).connected_ranks(), 2);
  EXPECT_EQ(status.jobs(0).shape().num_slots(), 4);
  EXPECT_EQ(status.jobs(0).ranks_size(), 2);

  v1::GetPlacementRequest request;
  request.set_job("job");
  v1::GetPlacementResponse placement;
  grpc::ClientContext second;
  SetDeadline(&second);
  ASSERT_TRUE(query_->GetPlacement(&second, request, &placement).ok());
  EXPECT_EQ(wire::FromProto(placement.placement())->placement,
            Placement::Static(*Topology::Make(kSmallShape)));

  v1::ListEventsRequest list;
  list.set_job("job");
  v1::ListEventsResponse events;
  grpc::ClientContext third;
  SetDeadline(&third);
  ASSERT_TRUE(query_->ListEvents(&third, list, &events).ok());
  ASSERT_GT(events.events_size(), 0);
  EXPECT_EQ(events.events(0).job(), "job");
  EXPECT_FALSE(events.events(0).reason().empty());
}

TEST_F(RpcServerTest, UnknownJobsAndAbsurdLimitsAreRefused) {
  Start();
  v1::GetJobRequest job;
  job.set_job("nobody");
  v1::JobStatus status;
  grpc::ClientContext first;
  SetDeadline(&first);
  EXPECT_EQ(query_->GetJob(&first, job, &status).error_code(), grpc::StatusCode::NOT_FOUND);
  v1::ListEventsRequest list;
  list.set_job("nobody");
  list.set_limit(1001);
  v1::ListEventsResponse events;
  grpc::ClientContext second;
  SetDeadline(&second);
  EXPECT_EQ(query_->ListEvents(&second, list, &events).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(RpcServerTest, CallsAreTimedByMethodAndCodeAndStreamsAreNot) {
  Start();
  (void)Join(0);
  EXPECT_THAT(server_->rpc_times(), IsEmpty());
  const auto ask = [this](const std::string& job) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetJobRequest request;
    request.set_job(job);
    v1::JobStatus response;
    return query_->GetJob(&context, request, &response).error_code();
  };
  EXPECT_EQ(ask("job"), grpc::StatusCode::OK);
  EXPECT_EQ(ask("job"), grpc::StatusCode::OK);
  EXPECT_EQ(ask("none"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(ask(""), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(Calls(), ElementsAre("Query/GetJob OK 2", "Query/GetJob INVALID_ARGUMENT 1",
                                   "Query/GetJob NOT_FOUND 1"));
}

TEST_F(RpcServerTest, MethodsThatDoNotExistShareOneName) {
  Start();
  for (int i = 0; i < 3; ++i) {
    const grpc::internal::RpcMethod method(absl::StrCat("/eplb.v1.Query/Get", i).c_str(),
                                           grpc::internal::RpcMethod::NORMAL_RPC);
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetJobRequest request;
    v1::JobStatus response;
    const grpc::Status status = grpc::internal::BlockingUnaryCall<v1::GetJobRequest, v1::JobStatus,
                                                                  google::protobuf::MessageLite,
                                                                  google::protobuf::MessageLite>(
        channel_.get(), method, &context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  EXPECT_THAT(Calls(), ElementsAre("other UNIMPLEMENTED 3"));
}

TEST_F(RpcServerTest, HealthIsServingUntilTheDrain) {
  Start();
  EXPECT_EQ(AskHealth(channel_), "SERVING");
  server_->StopServing();
  EXPECT_EQ(AskHealth(channel_), "NOT_SERVING");
  const std::unique_ptr<Rank> late = Connect();
  EXPECT_EQ(late->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::ExchangeResponse response;
  EXPECT_EQ(Exchange(0, 1, &response).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(RpcServerTest, ShutdownEndsOpenStreamsWithUnavailable) {
  Start();
  const std::unique_ptr<Rank> rank = Join(0);
  std::thread reader(
      [&rank] { EXPECT_EQ(rank->End().error_code(), grpc::StatusCode::UNAVAILABLE); });
  server_->Shutdown(absl::Seconds(10));
  reader.join();
  EXPECT_EQ(runner_->sessions().count(), 0);
}

TEST_F(RpcServerTest, APortInUseIsAnErrorThatSaysSo) {
  Start();
  RpcOptions options;
  options.listen = server_->address();
  options.runner = runner_.get();
  const absl::Status status = RpcServer::Start(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(
      std::string(status.message()),
      absl::StrCat("cannot listen on ", server_->address().Text(), ": Address already in use"));
}

// Under either mask of the process, and without a moment of another mode: its change would be told.
TEST_F(RpcServerTest, AUnixSocketIsMadeForItsOwnerAndGroup) {
  std::string folder = ::testing::TempDir() + "/eplb_socket_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const int changes = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  ASSERT_GE(inotify_add_watch(changes, folder.c_str(), IN_ATTRIB | IN_MOVED_TO), 0);
  for (const mode_t mask : {mode_t{0}, mode_t{077}}) {
    const mode_t before = umask(mask);
    const std::string path = absl::StrCat(folder, "/", mask, ".sock");
    Start({.unix_path = path});
    EXPECT_EQ(umask(before), mask) << "the process has its mask back";
    struct stat info {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777U, 0660U);
    std::array<char, 4096> told{};
    EXPECT_LT(read(changes, told.data(), told.size()), 0);
    server_.reset();
  }
  (void)close(changes);
  std::filesystem::remove_all(folder);
}

TEST_F(RpcServerTest, AUnixSocketIsServedAndNotTakenAway) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/eplb-rpc-", getpid(), ".sock");
  Start({.unix_path = path});
  EXPECT_EQ(server_->address().Text(), "unix:" + path);
  (void)Join(0);
  RpcOptions second;
  second.listen = server_->address();
  second.runner = runner_.get();
  EXPECT_EQ(
      RpcServer::Start(second).status(),
      absl::UnavailableError("cannot listen on unix:" + path + ": another process serves there"));
}

}  // namespace
}  // namespace eplb
