// Certificates, roles and jobs: who is refused, with which code, and that it is counted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include <google/protobuf/descriptor.h>

#include "base/tls_files.h"
#include "tests/server/rpc/secured_server.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using Code = grpc::StatusCode;

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

// Its mode is 0600: who may connect could read tls.key as well.
TEST_F(SecurityTest, TheSocketBesideTlsAsksForNoCertificate) {
  StartWithTls(path_);
  const auto channel = grpc::CreateChannel("unix:" + path_, grpc::InsecureChannelCredentials());
  EXPECT_EQ(AskJob(channel, "job").error_code(), Code::NOT_FOUND);
  EXPECT_TRUE(AllGather(channel, "job").ok());
  EXPECT_EQ(AskJob(OpenPlain(), "job").error_code(), Code::UNAVAILABLE);
}

TEST_F(SecurityTest, ACertificateWithoutANameIsUnauthenticated) {
  StartWithTls();
  EXPECT_EQ(AskJob(OpenAs(""), "job").error_code(), Code::UNAUTHENTICATED);
  const grpc::Status two = AskJob(OpenAs("URI:spiffe://x/viewer,URI:spiffe://x/train/0"), "job");
  EXPECT_EQ(two.error_code(), Code::UNAUTHENTICATED);
  EXPECT_EQ(two.error_message(), "the peer's certificate has 2 URIs, expected one");
  EXPECT_EQ(refusals(Refusal::kUnauthenticated), 2);
}

TEST_F(SecurityTest, EveryDnsNameIsTried) {
  StartWithTls();
  EXPECT_EQ(AskJob(OpenAs("DNS:node7.x,DNS:ops.x"), "job").error_code(), Code::NOT_FOUND);
}

TEST_F(SecurityTest, AMemberIsARankOfItsOwnJobOnly) {
  StartWithTls();
  const auto member = OpenAs("URI:spiffe://x/train/0");
  RankStream own(member);
  EXPECT_TRUE(own.Welcomed(HelloOf(0, 1)));
  EXPECT_TRUE(AllGather(member, "job").ok());
  EXPECT_TRUE(AskJob(member, "job").ok());
  wire::Hello other_job = HelloOf(0, 2);
  other_job.job = "other";
  RankStream other(member);
  EXPECT_FALSE(other.Welcomed(other_job));
  const grpc::Status status = other.End();
  EXPECT_EQ(status.error_code(), Code::PERMISSION_DENIED);
  EXPECT_THAT(status.error_message(), HasSubstr("not allowed for job \"other\""));
  EXPECT_EQ(AllGather(member, "other").error_code(), Code::PERMISSION_DENIED);
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
    RankStream stream(channel);
    EXPECT_FALSE(stream.Welcomed(HelloOf(0, 1)));
    EXPECT_EQ(stream.End().error_code(), Code::PERMISSION_DENIED) << names;
    EXPECT_EQ(AllGather(channel, "job").error_code(), Code::PERMISSION_DENIED) << names;
  }
  EXPECT_EQ(AskJob(OpenAs("DNS:nobody.x"), "job").error_code(), Code::PERMISSION_DENIED);
  EXPECT_EQ(AskJob(OpenAs("URI:spiffe://x/viewer"), "job").error_code(), Code::NOT_FOUND);
}

TEST_F(SecurityTest, AnOperatorAloneChangesWhatRunsAndTheAuditLogHasItsName) {
  StartWithTls();
  const auto pause = [](const std::shared_ptr<grpc::Channel>& channel) {
    return Call(*v1::Admin::NewStub(channel), &v1::Admin::Stub::Pause,
                ChangeOf<v1::PauseRequest>("r"))
        .code();
  };
  EXPECT_EQ(pause(OpenAs("URI:spiffe://x/train/0")), Code::PERMISSION_DENIED);
  EXPECT_EQ(pause(OpenAs("URI:spiffe://x/viewer")), Code::PERMISSION_DENIED);
  EXPECT_EQ(pause(OpenAs("DNS:ops.x")), Code::NOT_FOUND);
  EXPECT_EQ(runner_->Events("", 1)->front().actor(), "ops.x");
}

TEST_F(SecurityTest, StatusShowsOnlyTheJobsOfTheAsker) {
  StartWithTls();
  RankStream rank(OpenAs("URI:spiffe://x/train/0"));
  ASSERT_TRUE(rank.Welcomed(HelloOf(0, 1)));
  const auto own = AskStatus(OpenAs("URI:spiffe://x/viewer"));
  ASSERT_TRUE(own.ok());
  EXPECT_EQ(own.body.jobs_size(), 1);
  EXPECT_FALSE(own.body.jobs_hidden());
  const auto none = AskStatus(OpenAs("URI:spiffe://x/neighbour"));
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none.body.jobs_size(), 0);
  EXPECT_TRUE(none.body.jobs_hidden());
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
  std::ofstream(folder_.File("key")) << authority_.Issue("").key;
  const TlsOptions tls{
      .cert = folder_.File("cert"), .key = folder_.File("key"), .ca = folder_.File("ca")};
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
    std::ofstream(folder_.File(name)) << text;
    return folder_.File(name);
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
  EXPECT_EQ(message(bad), "TLS: the key is not set; TLS needs CA file, certificate and key");
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

// No caller may make the daemon open a file or run a program by a message.
TEST(MessagesTest, NoFieldIsAPathOrACommand) {
  int num_fields = 0;
  for (const google::protobuf::FileDescriptor* file :
       {v1::Up::descriptor()->file(), v1::GetJobRequest::descriptor()->file(),
        v1::Change::descriptor()->file(), v1::Shape::descriptor()->file()}) {
    for (int m = 0; m < file->message_type_count(); ++m) {
      const google::protobuf::Descriptor* message = file->message_type(m);
      for (int f = 0; f < message->field_count(); ++f, ++num_fields) {
        const std::string& name = message->field(f)->name();
        for (const char* word : {"path", "file", "directory", "command", "exec", "script", "url"}) {
          EXPECT_EQ(name.find(word), std::string::npos) << message->full_name() << "." << name;
        }
      }
    }
  }
  EXPECT_GT(num_fields, 100);
}

}  // namespace
}  // namespace eplb
