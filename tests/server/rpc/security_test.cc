// What strangers, and peers with the wrong rights, get from the gRPC side: a refusal with the right
// code, counted, while a good client works on.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include "proto/wire/convert.h"
#include "proto/wire/tls_files.h"
#include "server/rpc/grpc_log.h"
#include "server/rpc/rpc_server.h"
#include "tests/server/test_stream.h"
#include "tests/support/certificates.h"

#include "eplb/v1/query.grpc.pb.h"
#include "eplb/v1/session.grpc.pb.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

constexpr auto kCallDeadline = std::chrono::seconds(20);
constexpr absl::Duration kPatience = absl::Seconds(20);

// Bytes straight into a TCP connection.
class RawConnection {
 public:
  explicit RawConnection(int port) : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    (void)setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(connect(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  RawConnection(RawConnection&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  RawConnection& operator=(RawConnection&&) = delete;
  ~RawConnection() {
    if (descriptor_ >= 0) (void)close(descriptor_);
  }
  void Send(const std::string& bytes) {
    (void)send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // True once the other end has closed.
  bool ReadToTheEnd() {
    char bytes[4096];
    ssize_t got = 0;
    while ((got = recv(descriptor_, bytes, sizeof(bytes), 0)) > 0) continue;
    return got == 0 || errno == ECONNRESET;
  }

 private:
  int descriptor_;
};

class SecurityTest : public ::testing::Test {
 protected:
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
  void StartWithTls() {
    InstallCertificate(authority_, authority_.pem());
    TlsOptions tls{.cert = folder_ / "cert", .key = folder_ / "key", .ca = folder_ / "ca"};
    tls.identities = {{"spiffe://x/train/*", AccessRole::kMember, {"job"}},
                      {"spiffe://x/viewer", AccessRole::kViewer, {"job"}},
                      {"spiffe://x/neighbour", AccessRole::kViewer, {"other"}},
                      {"ops.x", AccessRole::kOperator, {"*"}}};
    Start({.tls = tls, .handshake_deadline = absl::Seconds(1)});
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
  static grpc::Status Exchange(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& job) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    v1::ExchangeRequest request;
    request.set_job(job);
    request.set_key("0");
    request.set_world_size(1);
    v1::ExchangeResponse response;
    return v1::Balancer::NewStub(channel)->Exchange(&context, request, &response);
  }

  struct Stream {
    explicit Stream(const std::shared_ptr<grpc::Channel>& channel)
        : stub(v1::Balancer::NewStub(channel)) {
      context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
      stream = stub->Session(&context);
    }
    // What the daemon says to this Hello: true = Welcome.
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

TEST_F(SecurityTest, APeerWithoutAGoodCertificateGetsNoConnection) {
  StartWithTls();
  TestAuthority stranger;
  const auto good = OpenAs("URI:spiffe://x/train/0");
  ASSERT_TRUE(Works(good));
  const std::pair<const char*, std::shared_ptr<grpc::Channel>> bad[] = {
      {"plaintext", OpenPlain()},
      {"no certificate", OpenTls({}, authority_.pem())},
      {"wrong CA", OpenTls(stranger.Issue("URI:spiffe://x/train/0"), authority_.pem())},
      {"expired", OpenTls(authority_.Issue("URI:spiffe://x/train/0", -1), authority_.pem())}};
  int64_t failed = 0;
  for (const auto& [name, channel] : bad) {
    EXPECT_EQ(AskJob(channel, "job").error_code(), Code::UNAVAILABLE) << name;
    EXPECT_TRUE(Eventually([&] { return FailedHandshakesHere() > failed; })) << name;
    failed = FailedHandshakesHere();
  }
  EXPECT_TRUE(Works(good));
}

TEST_F(SecurityTest, ACertificateWithoutANameIsUnauthenticated) {
  StartWithTls();
  EXPECT_EQ(AskJob(OpenAs(""), "job").error_code(), Code::UNAUTHENTICATED);
  EXPECT_EQ(AskJob(OpenAs("URI:spiffe://x/viewer,URI:spiffe://x/train/0"), "job").error_code(),
            Code::UNAUTHENTICATED)
      << "two URIs";
  EXPECT_EQ(refusals(Refusal::kUnauthenticated), 2);
}

TEST_F(SecurityTest, AMemberIsARankOfItsOwnJobOnly) {
  StartWithTls();
  const auto member = OpenAs("URI:spiffe://x/train/0");
  Stream own(member);
  EXPECT_TRUE(own.Welcomed(HelloOf(0, 1)));
  EXPECT_TRUE(Exchange(member, "job").ok());
  EXPECT_TRUE(AskJob(member, "job").ok());
  wire::Hello other_job = HelloOf(0, 2);
  other_job.job = "other";
  Stream other(member);
  EXPECT_FALSE(other.Welcomed(other_job));
  const grpc::Status status = other.End();
  EXPECT_EQ(status.error_code(), Code::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("not allowed for job \"other\""));
  EXPECT_EQ(Exchange(member, "other").error_code(), Code::PERMISSION_DENIED);
  EXPECT_EQ(AskJob(member, "other").error_code(), Code::PERMISSION_DENIED);
  EXPECT_EQ(refusals(Refusal::kDenied), 3);
  // A Hello for another job on a stream that was let in.
  EXPECT_FALSE(own.Welcomed(other_job));
  EXPECT_EQ(own.End().error_code(), Code::PERMISSION_DENIED);
}

TEST_F(SecurityTest, OtherRolesAreNoRanks) {
  StartWithTls();
  for (const char* names : {"URI:spiffe://x/viewer", "DNS:ops.x", "DNS:nobody.x"}) {
    const auto channel = OpenAs(names);
    Stream stream(channel);
    EXPECT_FALSE(stream.Welcomed(HelloOf(0, 1)));
    EXPECT_EQ(stream.End().error_code(), Code::PERMISSION_DENIED) << names;
    EXPECT_EQ(Exchange(channel, "job").error_code(), Code::PERMISSION_DENIED) << names;
  }
  EXPECT_EQ(AskJob(OpenAs("DNS:nobody.x"), "job").error_code(), Code::PERMISSION_DENIED);
  EXPECT_EQ(AskJob(OpenAs("URI:spiffe://x/viewer"), "job").error_code(), Code::NOT_FOUND);
}

TEST_F(SecurityTest, StatusShowsOnlyTheJobsOfTheAsker) {
  StartWithTls();
  Stream rank(OpenAs("URI:spiffe://x/train/0"));
  ASSERT_TRUE(rank.Welcomed(HelloOf(0, 1)));
  v1::GetStatusResponse own;
  ASSERT_TRUE(AskStatus(OpenAs("URI:spiffe://x/viewer"), &own).ok());
  EXPECT_EQ(own.jobs_size(), 1);
  v1::GetStatusResponse none;
  ASSERT_TRUE(AskStatus(OpenAs("URI:spiffe://x/neighbour"), &none).ok());
  EXPECT_EQ(none.jobs_size(), 0);
  EXPECT_EQ(AskJob(OpenAs("DNS:ops.x"), "").error_code(), Code::INVALID_ARGUMENT);
}

TEST_F(SecurityTest, ANewCertificateIsUsedWithoutARestart) {
  StartWithTls();
  TestAuthority next;
  const std::string both = authority_.pem() + next.pem();
  const IssuedCertificate peer = authority_.Issue("URI:spiffe://x/train/0");
  EXPECT_TRUE(Works(OpenTls(peer, authority_.pem())));
  EXPECT_FALSE(Works(OpenTls(peer, next.pem())));
  InstallCertificate(next, both);
  // The files are looked at once a second.
  EXPECT_TRUE(Eventually([&] { return Works(OpenTls(peer, next.pem())); }));
  EXPECT_TRUE(Works(OpenTls(next.Issue("URI:spiffe://x/train/0"), next.pem())));
  EXPECT_FALSE(Works(OpenTls(peer, authority_.pem())));
}

TEST_F(SecurityTest, AKeyThatDoesNotFitStopsTheStart) {
  InstallCertificate(authority_, authority_.pem());
  std::ofstream(folder_ / "key") << authority_.Issue("").key;
  const TlsOptions tls{.cert = folder_ / "cert", .key = folder_ / "key", .ca = folder_ / "ca"};
  runner_ = *Runner::Start({}, MakeMemoryStore());
  const absl::Status status =
      RpcServer::Start({.listen = {.host = "127.0.0.1"}, .runner = runner_.get(), .tls = tls})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), absl::StrCat(tls.key, ": is not the key of ", tls.cert));
}

TEST_F(SecurityTest, EachBadFileIsNamedInOneLine) {
  const IssuedCertificate good = authority_.Issue("");
  const auto write = [this](const char* name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  };
  const wire::TlsFiles files{.ca = write("ca", authority_.pem()),
                             .cert = write("cert", good.cert),
                             .key = write("key", good.key)};
  EXPECT_TRUE(wire::CheckTlsFiles(files).ok());
  EXPECT_TRUE(wire::CheckTlsFiles({}).ok());
  const auto message = [](const wire::TlsFiles& bad) {
    const absl::Status status = wire::CheckTlsFiles(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  wire::TlsFiles bad = files;
  bad.key = "";
  EXPECT_EQ(message(bad), "TLS: no key is named; it needs CA file, certificate and key");
  bad.key = "/nowhere/key";
  EXPECT_EQ(message(bad), "/nowhere/key: cannot be read: No such file or directory");
  bad.key = files.cert;
  EXPECT_EQ(message(bad), files.cert + ": holds no private key in PEM without a password");
  bad = files;
  bad.ca = files.key;
  EXPECT_EQ(message(bad), files.key + ": holds no certificate in PEM");
  const IssuedCertificate old = authority_.Issue("", -1);
  bad = files;
  bad.cert = write("old", old.cert);
  bad.key = write("old_key", old.key);
  EXPECT_THAT(message(bad), HasSubstr(bad.cert + ": expired at 20"));
  const absl::StatusOr<absl::Time> expiry = wire::CertificateExpiry(files.cert);
  ASSERT_TRUE(expiry.ok());
  EXPECT_LT(*expiry - absl::Now(), absl::Hours(25));
  EXPECT_GT(*expiry - absl::Now(), absl::Hours(23));
}

TEST_F(SecurityTest, SilentAndSlowConnectionsAreClosedAndHurtNobody) {
  StartWithTls();
  const auto good = OpenAs("URI:spiffe://x/train/0");
  std::vector<RawConnection> slow;
  for (int i = 0; i < 200; ++i) {
    slow.emplace_back(server_->address().port);
    if (i % 2 == 0) slow.back().Send("\x16");
    if (i % 20 == 0) {
      EXPECT_TRUE(Works(good));
    }
  }
  for (int i = 0; i < 200; i += 2) slow[static_cast<size_t>(i)].Send("\x03");
  EXPECT_TRUE(Works(OpenAs("URI:spiffe://x/train/0")));
  for (RawConnection& one : slow) EXPECT_TRUE(one.ReadToTheEnd());
  EXPECT_TRUE(Eventually([&] { return FailedHandshakesHere() >= 200; })) << FailedHandshakesHere();
}

TEST_F(SecurityTest, RandomBytesAfterThePrefaceHurtNobody) {
  Start({.handshake_deadline = absl::Seconds(1)});
  std::mt19937 random(7);
  for (int i = 0; i < 500; ++i) {
    RawConnection connection(server_->address().port);
    std::string bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    if (i % 2 == 0) bytes += std::string("\0\0\0\4\0\0\0\0\0", 9);  // empty settings
    for (int k = 0; k < 200; ++k) bytes += static_cast<char>(random());
    connection.Send(bytes);
  }
  EXPECT_TRUE(Works(OpenPlain()));
}

// 500 streams of the right method whose messages are no protobuf.
TEST_F(SecurityTest, MalformedMessagesAreRefusedAndCounted) {
  Start({});
  const auto channel = OpenPlain();
  grpc::GenericStub stub(channel);
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    std::string bytes(1 + random() % 64, '\xff');
    for (char& byte : bytes) byte = static_cast<char>(random() | 0x80);  // a varint without end
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallDeadline);
    grpc::CompletionQueue queue;
    const auto call = stub.PrepareCall(&context, "/eplb.v1.Balancer/Session", &queue);
    const auto wait = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    ASSERT_TRUE(wait());
    const grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    (void)wait();
    grpc::Status status;
    call->Finish(&status, nullptr);
    (void)wait();
    ASSERT_TRUE(status.error_code() == Code::UNAVAILABLE ||
                status.error_code() == Code::INVALID_ARGUMENT)
        << status.error_message();
  }
  EXPECT_TRUE(Eventually([&] { return refusals(Refusal::kMalformed) >= 500; }))
      << refusals(Refusal::kMalformed);
  Stream good(channel);
  EXPECT_TRUE(good.Welcomed(HelloOf(0, 1)));
}

TEST_F(SecurityTest, SessionsAndCallsOfOneAddressAreLimited) {
  Start({.peers = {.max_sessions = 1, .calls_per_second = 1}});
  Stream first(OpenPlain());
  ASSERT_TRUE(first.Welcomed(HelloOf(0, 1)));
  Stream second(OpenPlain());
  EXPECT_FALSE(second.Welcomed(HelloOf(1, 2)));
  EXPECT_EQ(second.End().error_code(), Code::RESOURCE_EXHAUSTED);
  const auto channel = OpenPlain();
  grpc::Status status;
  for (int i = 0; i < 3; ++i) status = AskJob(channel, "job");
  EXPECT_EQ(status.error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("limits.calls_per_second"));
  EXPECT_GE(refusals(Refusal::kLimited), 2);
}

TEST_F(SecurityTest, AnOversizedMessageEndsItsStreamOnly) {
  Start({});
  Stream good(OpenPlain());
  ASSERT_TRUE(good.Welcomed(HelloOf(0, 1)));
  Stream large(OpenPlain());
  v1::Up up;
  up.mutable_load_report()->set_counts_u32(std::string(RpcServer::kMaxReceiveBytes, '\0'));
  (void)large.stream->Write(up);
  EXPECT_EQ(large.End().error_code(), Code::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Eventually([&] { return refusals(Refusal::kMalformed) == 1; }));
  EXPECT_TRUE(Works(OpenPlain()));
}

}  // namespace
}  // namespace eplb
