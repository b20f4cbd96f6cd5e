// A gRPC server in this process over a store that a test can break, and what asks it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include <grpcpp/grpcpp.h>

#include "placement/policies/registry.h"
#include "proto/wire/convert.h"
#include "server/rpc/rpc_server.h"
#include "tests/server/failing_store.h"
#include "tests/server/store/folder.h"
#include "tests/server/test_stream.h"

#include "eplb/v1/admin.grpc.pb.h"
#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

inline constexpr auto kCallDeadline = std::chrono::seconds(20);

// A rank: one stream with blocking reads and writes, each under the call's deadline.
class RankStream {
 public:
  explicit RankStream(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::Balancer::NewStub(channel)) {
    context_.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    stream_ = stub_->Session(&context_);
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
  // Returns true if the daemon answers this Hello with Welcome.
  bool Welcomed(const wire::Hello& hello) {
    return Say(hello) && Hear<wire::Welcome>().has_value();
  }
  grpc::Status End() {
    v1::Down down;
    while (stream_->Read(&down)) continue;
    return stream_->Finish();
  }
  grpc::ClientReaderWriter<v1::Up, v1::Down>* stream() { return stream_.get(); }
  void Cancel() { context_.TryCancel(); }

 private:
  const std::unique_ptr<v1::Balancer::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream_;
};

// How a call ended, and with what.
template <class Response>
struct Answered {
  grpc::Status status;
  Response body;

  bool ok() const { return status.ok(); }
  grpc::StatusCode code() const { return status.error_code(); }
};

// Calls a method of a stub under the deadline.
template <class Stub, class Request, class Response>
Answered<Response> Call(Stub& stub,
                        grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                     Response*),
                        const Request& request) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  Answered<Response> answered;
  answered.status = (stub.*method)(&context, request, &answered.body);
  return answered;
}

// Returns a request about a job.
template <class Request>
Request About(const std::string& job) {
  Request request;
  request.set_job(job);
  return request;
}

// Returns a request of the rank in all-gather 0 of a run.
inline v1::AllGatherRequest AllGatherOf(const std::string& job, int32_t rank, int32_t world_size) {
  auto request = About<v1::AllGatherRequest>(job);
  request.set_launch_id("run_number");
  request.set_key("0");
  request.set_rank(static_cast<uint32_t>(rank));
  request.set_world_size(static_cast<uint32_t>(world_size));
  request.set_nonce(7);
  request.set_blob(absl::StrCat("blob", rank));
  return request;
}

// Returns a request for a change of the job "job", which is at version `expect_version`.
template <class Request>
Request ChangeOf(const std::string& request_id, uint64_t expect_version = 0) {
  Request request;
  request.mutable_change()->set_job("job");
  request.mutable_change()->set_request_id(request_id);
  request.mutable_change()->set_expect_version(expect_version);
  request.mutable_change()->set_comment("night");
  return request;
}

class ServedTest : public ::testing::Test {
 protected:
  void Start(Address listen = {.host = "127.0.0.1"}, RpcOptions options = {}) {
    RunnerOptions runner;
    runner.core.settings.policy = kIncrementalPolicyName;
    runner.core.settings.every_steps = kReportEvery;
    runner.core.server_version = "test";
    runner.core.prepare_deadline = prepare_deadline_;
    runner.core.settings.freeze_steps.first = 0;
    runner.core.settings.freeze_steps.last = frozen_to_;
    runner.queue = queue_;
    auto store = std::make_unique<FailingStore>();
    store_ = store.get();
    runner_ = *Runner::Start(runner, std::move(store));
    options.listen = std::move(listen);
    options.runner = runner_.get();
    options.server_version = server_version_;
    options.messages_per_second = messages_per_second_;
    absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(server_->address().Text(), grpc::InsecureChannelCredentials());
    balancer_ = v1::Balancer::NewStub(channel_);
    query_ = v1::Query::NewStub(channel_);
    admin_ = v1::Admin::NewStub(channel_);
  }
  std::unique_ptr<RankStream> Connect() { return std::make_unique<RankStream>(channel_); }
  std::unique_ptr<RankStream> Join(int32_t rank) {
    std::unique_ptr<RankStream> stream = Connect();
    EXPECT_TRUE(stream->Welcomed(HelloOf(rank, 100 + rank)));
    return stream;
  }
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + kCallDeadline);
  }
  Answered<v1::AllGatherResponse> AllGather(int32_t rank, int32_t world_size) {
    return Call(*balancer_, &v1::Balancer::Stub::AllGather, AllGatherOf("job", rank, world_size));
  }

  EventQueue::Limits queue_ = {};
  std::string server_version_ = "test";
  int32_t messages_per_second_ = 1000;
  int64_t frozen_to_ = -1;  // no decision at the steps up to this one
  absl::Duration prepare_deadline_ = core::Config().prepare_deadline;
  FailingStore* store_ = nullptr;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Balancer::Stub> balancer_;
  std::unique_ptr<v1::Query::Stub> query_;
  std::unique_ptr<v1::Admin::Stub> admin_;
};

// A test with the path of a Unix socket.
class SocketServedTest : public ServedTest {
 protected:
  ~SocketServedTest() override { server_.reset(); }

  const Folder folder_;
  const std::string path_ = folder_.File("eplbd.sock");
};

}  // namespace eplb
