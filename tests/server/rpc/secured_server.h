// A gRPC server with certificates of its own, and peers of every kind.
#ifndef EPLB_TESTS_SERVER_RPC_SECURED_SERVER_H_
#define EPLB_TESTS_SERVER_RPC_SECURED_SERVER_H_

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include <grpcpp/grpcpp.h>

#include "proto/wire/convert.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/rpc_server.h"
#include "tests/server/test_stream.h"
#include "tests/support/certificates.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

class SecurityTest : public ::testing::Test {
 protected:
  static constexpr auto kCallDeadline = std::chrono::seconds(20);
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  static void SetUpTestSuite() { RouteGrpcLog(); }

  void SetUp() override {
    std::string name = ::testing::TempDir() + "eplb_security_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    channels_.clear();
    server_.reset();
    runner_.reset();
    std::filesystem::remove_all(folder_);
  }

  void Start(RpcOptions options) {
    RunnerOptions runner;
    runner.core.server_version = "test";
    runner_ = *Runner::Start(runner, MakeMemoryStore());
    options.listen = {.host = "127.0.0.1"};
    options.runner = runner_.get();
    options.server_version = "test";
    absl::StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    handshakes_before_ = server_->refusals(Refusal::kHandshake);
  }
  void StartWithTls(const std::string& unix_socket = "") {
    InstallCertificate(authority_, authority_.pem());
    TlsOptions tls{.cert = folder_ / "cert", .key = folder_ / "key", .ca = folder_ / "ca"};
    tls.identities = {{"spiffe://x/train/*", AccessRole::kMember, {"job"}},
                      {"spiffe://x/viewer", AccessRole::kViewer, {"job"}},
                      {"spiffe://x/neighbour", AccessRole::kViewer, {"other"}},
                      {"ops.x", AccessRole::kOperator, {"*"}}};
    Start({.unix_socket = unix_socket, .tls = tls, .handshake_deadline = absl::Seconds(1)});
  }
  void InstallCertificate(TestAuthority& authority, const std::string& ca) {
    const IssuedCertificate issued = authority.Issue("DNS:localhost,IP:127.0.0.1");
    std::ofstream(folder_ / "ca") << ca;
    std::ofstream(folder_ / "key") << issued.key;
    std::ofstream(folder_ / "cert") << issued.cert;
  }

  std::shared_ptr<grpc::Channel> Open(const std::shared_ptr<grpc::ChannelCredentials>& with) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channels_.push_back(grpc::CreateCustomChannel(server_->address().Text(), with, arguments));
    return channels_.back();
  }
  std::shared_ptr<grpc::Channel> OpenTls(const IssuedCertificate& peer, const std::string& ca) {
    return Open(grpc::SslCredentials(
        {.pem_root_certs = ca, .pem_private_key = peer.key, .pem_cert_chain = peer.cert}));
  }
  std::shared_ptr<grpc::Channel> OpenAs(const std::string& names) {
    return OpenTls(authority_.Issue(names), authority_.pem());
  }
  std::shared_ptr<grpc::Channel> OpenPlain() { return Open(grpc::InsecureChannelCredentials()); }

  static grpc::Status AskJob(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& job) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    v1::GetJobRequest request;
    request.set_job(job);
    v1::JobStatus response;
    return v1::Query::NewStub(channel)->GetJob(&context, request, &response);
  }
  static grpc::Status AskStatus(const std::shared_ptr<grpc::Channel>& channel,
                                v1::GetStatusResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    return v1::Query::NewStub(channel)->GetStatus(&context, {}, response);
  }
  static bool Works(const std::shared_ptr<grpc::Channel>& channel) {
    v1::GetStatusResponse response;
    return AskStatus(channel, &response).ok();
  }
  static grpc::Status AllGather(const std::shared_ptr<grpc::Channel>& channel,
                                const std::string& job) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    v1::AllGatherRequest request;
    request.set_job(job);
    request.set_launch_id("run_number");
    request.set_key("0");
    request.set_world_size(1);
    v1::AllGatherResponse response;
    return v1::Balancer::NewStub(channel)->AllGather(&context, request, &response);
  }

  struct Stream {
    explicit Stream(const std::shared_ptr<grpc::Channel>& channel)
        : stub(v1::Balancer::NewStub(channel)) {
      context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
      stream = stub->Session(&context);
    }
    // Returns true if the daemon answers this Hello with Welcome.
    bool Welcomed(const wire::Hello& hello) {
      v1::Up up;
      wire::ToProto(hello, &up);
      v1::Down down;
      return stream->Write(up) && stream->Read(&down) && down.has_welcome();
    }
    grpc::Status End() {
      v1::Down down;
      while (stream->Read(&down)) continue;
      return stream->Finish();
    }
    std::unique_ptr<v1::Balancer::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::Up, v1::Down>> stream;
  };

  int64_t refusals(Refusal refusal) const { return server_->refusals(refusal); }
  int64_t FailedHandshakesHere() const {
    return server_->refusals(Refusal::kHandshake) - handshakes_before_;
  }
  // gRPC counts a handshake as failed after the client has seen it fail.
  static bool Eventually(const std::function<bool()>& holds) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!holds() && absl::Now() < deadline) std::this_thread::yield();
    return holds();
  }

  TestAuthority authority_;
  std::filesystem::path folder_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<RpcServer> server_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  int64_t handshakes_before_ = 0;
};

}  // namespace eplb

#endif  // EPLB_TESTS_SERVER_RPC_SECURED_SERVER_H_
