// A gRPC server with certificates of its own, and peers of every kind.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include <grpcpp/grpcpp.h>

#include "server/rpc/grpc_log.h"
#include "server/rpc/rpc_server.h"
#include "tests/server/rpc/served_test.h"
#include "tests/support/certificates.h"

namespace eplb {

class SecurityTest : public SocketServedTest {
 protected:
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  static void SetUpTestSuite() { RouteGrpcLog(); }

  void Start(RpcOptions options) {
    ServedTest::Start({.host = "127.0.0.1"}, std::move(options));
    handshakes_before_ = server_->refusals(Refusal::kHandshake);
  }
  void StartWithTls(const std::string& unix_socket = "") {
    InstallCertificate(authority_, authority_.pem());
    TlsOptions tls{
        .cert = folder_.File("cert"), .key = folder_.File("key"), .ca = folder_.File("ca")};
    tls.identities = {{"spiffe://x/train/*", AccessRole::kMember, {"job"}},
                      {"spiffe://x/viewer", AccessRole::kViewer, {"job"}},
                      {"spiffe://x/neighbour", AccessRole::kViewer, {"other"}},
                      {"ops.x", AccessRole::kOperator, {"*"}}};
    Start({.unix_socket = unix_socket, .tls = tls, .handshake_deadline = absl::Seconds(1)});
  }
  void InstallCertificate(TestAuthority& authority, const std::string& ca) {
    const IssuedCertificate issued = authority.Issue("DNS:localhost,IP:127.0.0.1");
    std::ofstream(folder_.File("ca")) << ca;
    std::ofstream(folder_.File("key")) << issued.key;
    std::ofstream(folder_.File("cert")) << issued.cert;
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
    return Call(*v1::Query::NewStub(channel), &v1::Query::Stub::GetJob,
                About<v1::GetJobRequest>(job))
        .status;
  }
  static Answered<v1::GetStatusResponse> AskStatus(const std::shared_ptr<grpc::Channel>& channel) {
    return Call(*v1::Query::NewStub(channel), &v1::Query::Stub::GetStatus, v1::GetStatusRequest());
  }
  static bool Works(const std::shared_ptr<grpc::Channel>& channel) {
    return AskStatus(channel).ok();
  }
  static grpc::Status AllGather(const std::shared_ptr<grpc::Channel>& channel,
                                const std::string& job) {
    return Call(*v1::Balancer::NewStub(channel), &v1::Balancer::Stub::AllGather,
                AllGatherOf(job, 0, 1))
        .status;
  }

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
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  int64_t handshakes_before_ = 0;
};

}  // namespace eplb
