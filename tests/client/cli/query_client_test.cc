#include "client/cli/query_client.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "client/cli/get.h"
#include "tests/client/cli/formats/test_files.h"
#include "tests/client/cli/scripted_query.h"

namespace eplb::cli {

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kEndpoint[] = "127.0.0.1:29610";

std::string Message(const std::string& grpc, bool plaintext = true) {
  return std::string(ConnectionError(kEndpoint, grpc, plaintext).message());
}

TEST(ConnectionErrorTest, ARefusedConnectionIsCalledSo) {
  const std::string refused =
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:29610: Failed to "
      "connect to remote host: Connection refused";
  EXPECT_EQ(Message(refused), "cannot reach 127.0.0.1:29610: connection refused");
  EXPECT_TRUE(absl::IsUnavailable(ConnectionError(kEndpoint, refused, true)));
}

TEST(ConnectionErrorTest, ASocketThatMayNotBeOpenedIsDenied) {
  const absl::Status status = ConnectionError(
      "unix:/run/eplb/eplbd.sock",
      "failed to connect to all addresses; last error: UNKNOWN: unix:/run/eplb/eplbd.sock: Failed "
      "to connect to remote host: Permission denied",
      true);
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_EQ(std::string(status.message()),
            "cannot reach unix:/run/eplb/eplbd.sock: this user may not open the socket");
}

TEST(ConnectionErrorTest, AnHttpServerIsToldFromADaemon) {
  const std::string message = Message(
      "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:29611: "
      "Trying to connect an http1.x server");
  EXPECT_THAT(message, HasSubstr("is that eplbd's --http address?"));
  EXPECT_THAT(message, Not(HasSubstr("UNKNOWN")));
}

TEST(ConnectionErrorTest, OtherWordsOfGrpcStayWithoutTheirPreamble) {
  EXPECT_EQ(Message("failed to connect to all addresses; last error: UNKNOWN: ipv4:1.2.3.4:1: odd"),
            "cannot reach 127.0.0.1:29610: UNKNOWN: ipv4:1.2.3.4:1: odd");
  EXPECT_EQ(Message("DNS resolution failed for nowhere:1"),
            "cannot reach 127.0.0.1:29610: DNS resolution failed for nowhere:1");
}

TEST(ConnectionErrorTest, ADaemonThatHangsUpMayWantTls) {
  EXPECT_THAT(Message("last error: UNKNOWN: Socket closed"), HasSubstr("does it want TLS?"));
  EXPECT_THAT(Message("last error: UNKNOWN: Socket closed", false), Not(HasSubstr("TLS")));
}

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class EndpointTest : public FilesTest {
 protected:
  void SetUp() override {
    FilesTest::SetUp();
    for (const char* name : {"EPLB_ENDPOINT", "EPLB_TLS_CA", "EPLB_TLS_CERT", "EPLB_TLS_KEY",
                             "EPLB_TLS_SERVER_NAME"}) {
      unsetenv(name);
    }
    setenv("XDG_CONFIG_HOME", Path("config").c_str(), 1);
    setenv("XDG_RUNTIME_DIR", Path("run").c_str(), 1);
    std::filesystem::create_directories(Path("config/eplb"));
    std::filesystem::create_directories(Path("run/eplb"));
  }
  std::string Error(const std::string& flag) const {
    return std::string(ResolveDaemon(flag, {}).status().message());
  }
};

TEST_F(EndpointTest, EachSourceYieldsToTheOneBefore) {
  // A service's own socket would come before the default.
  if (!std::filesystem::exists("/run/eplb/eplbd.sock")) {
    EXPECT_EQ(ResolveDaemon("", {})->endpoint, "127.0.0.1:29610");
    const int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    const std::string path = Path("run/eplb/eplbd.sock");
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(socket_fd, 1), 0);
    EXPECT_EQ(ResolveDaemon("", {})->endpoint, "unix:" + path);
    // The kernel names the peer there; certificates are for daemons on the network.
    setenv("EPLB_TLS_CA", "/etc/ca.pem", 1);
    EXPECT_FALSE(ResolveDaemon("", {})->tls.enabled());
    unsetenv("EPLB_TLS_CA");
    EXPECT_EQ(ResolveDaemon("", {.ca = "/etc/ca.pem"}).status().message(),
              "--tls-ca needs --endpoint: without one the daemon is at unix:" + path +
                  ", which has no TLS");
    EXPECT_TRUE(ResolveDaemon("head:1", {.ca = "/etc/ca.pem"})->tls.enabled());
    close(socket_fd);
    // What a killed daemon leaves behind is passed over.
    ASSERT_TRUE(std::filesystem::exists(path));
    EXPECT_EQ(ResolveDaemon("", {})->endpoint, "127.0.0.1:29610");
  }
  Write("config/eplb/eplbctl.toml", "endpoint = \"head:1\"\n");
  EXPECT_EQ(ResolveDaemon("", {})->endpoint, "head:1");
  setenv("EPLB_ENDPOINT", "other:2", 1);
  EXPECT_EQ(ResolveDaemon("", {})->endpoint, "other:2");
  EXPECT_EQ(ResolveDaemon("flag:3", {})->endpoint, "flag:3");
}

TEST_F(EndpointTest, EveryFormThatGrpcTakesIsAccepted) {
  for (const char* good : {"host:1", "127.0.0.1:65535", "[::1]:29610", "unix:/a/b", "unix:b"}) {
    EXPECT_EQ(ResolveDaemon(good, {})->endpoint, good);
  }
  EXPECT_EQ(ResolveDaemon("/run/x.sock", {})->endpoint, "unix:/run/x.sock");
}

TEST_F(EndpointTest, WhatIsNoEndpointIsRefusedWithItsSource) {
  for (const char* bad : {"host", "host:", ":1", "host:0", "host:65536", "host:x", "::1:5",
                          "unix:", "a b:1", "http://host:1"}) {
    EXPECT_THAT(Error(bad), HasSubstr("--endpoint: endpoint is \"" + std::string(bad)));
  }
  setenv("EPLB_ENDPOINT", "nowhere", 1);
  EXPECT_THAT(Error(""), HasSubstr("EPLB_ENDPOINT: endpoint is"));
}

TEST_F(EndpointTest, ABrokenConfigFileIsNamed) {
  const std::pair<const char*, const char*> cases[] = {{"endpoint = ", ":1: not TOML: "},
                                                       {"# \u00e9\n[\uFBAF]\n", ":2: not TOML: "},
                                                       {"endpoint = 5", "endpoint: expected"},
                                                       {"tls = 5", "tls: expected"},
                                                       {"[tls]\ncacert = \"x\"", "tls.cacert: exp"},
                                                       {"[tls]\nca = 5", "tls.ca: expected"},
                                                       {"server = \"a:1\"", "server: expected"},
                                                       {"endpoint = \"x\"", "endpoint is \"x\""}};
  for (const auto& [content, message] : cases) {
    const std::string path = Write("config/eplb/eplbctl.toml", content);
    EXPECT_THAT(Error(""), AllOf(StartsWith(path + ":"), HasSubstr(message)));
    EXPECT_EQ(ResolveDaemon("flag:3", {})->endpoint, "flag:3");
  }
}

TEST_F(EndpointTest, TheConfigurationFileHasTheCertificatesOfItsDaemon) {
  Write("config/eplb/eplbctl.toml",
        "endpoint = \"head:1\"\n[tls]\nca = \"/etc/ca.pem\"\ncert = \"me.pem\"\nkey = "
        "\"me.key\"\nserver_name = \"eplbd\"\n");
  const DaemonAddress configured = *ResolveDaemon("", {});
  EXPECT_EQ(configured.endpoint, "head:1");
  EXPECT_EQ(configured.tls.ca, "/etc/ca.pem");
  EXPECT_EQ(configured.tls.cert, Path("config/eplb/me.pem"));
  EXPECT_EQ(configured.tls.key, Path("config/eplb/me.key"));
  EXPECT_EQ(configured.tls.server_name, "eplbd");
  setenv("EPLB_TLS_CERT", "other.pem", 1);
  EXPECT_EQ(ResolveDaemon("", {})->tls.cert, "other.pem");
  EXPECT_EQ(ResolveDaemon("", {.cert = "flag.pem"})->tls.cert, "flag.pem");
  unsetenv("EPLB_TLS_CERT");
  // Another daemon need not want TLS.
  EXPECT_FALSE(ResolveDaemon("other:2", {})->tls.enabled());
}

TEST_F(EndpointTest, CertificatesWithoutAnEndpointAreForEveryDaemon) {
  Write("config/eplb/eplbctl.toml", "[tls]\nca = \"/etc/ca.pem\"\n");
  EXPECT_EQ(ResolveDaemon("other:2", {})->tls.ca, "/etc/ca.pem");
}

class QueryClientTest : public ::testing::Test {
 protected:
  QueryClientTest() { *daemon_.status.add_jobs() = ExampleJob(); }
  ScriptedQuery daemon_;
};

TEST_F(QueryClientTest, WithoutJobTheOnlyOneIsMeantAndOfSeveralOneIsAskedFor) {
  daemon_.status.add_jobs()->set_job("other");
  const Output several = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(several.exit_code, kUsage);
  EXPECT_EQ(several.message, "--job is needed: the daemon has train, other");
  daemon_.status.clear_jobs();
  const Output none = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(none.exit_code, kNotFound);
  EXPECT_EQ(none.message, "the daemon has no job yet");
  daemon_.status.set_jobs_hidden(true);
  const Output hidden = RunGetRanks({.query = daemon_.Options(), .job = ""}, kPlain);
  EXPECT_EQ(hidden.exit_code, kNotFound);
  EXPECT_EQ(hidden.message, kNoVisibleJob);
}

TEST_F(QueryClientTest, WhatMayComeFromAnyServerNamesTheEndpoint) {
  for (const grpc::StatusCode code :
       {grpc::StatusCode::UNIMPLEMENTED, grpc::StatusCode::UNKNOWN, grpc::StatusCode::UNAVAILABLE,
        grpc::StatusCode::INTERNAL, grpc::StatusCode::RESOURCE_EXHAUSTED}) {
    daemon_.failure = {code, "Received http2 header with status: 404"};
    const Output output = RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain);
    EXPECT_EQ(output.exit_code, kError) << code;
    EXPECT_EQ(output.message, daemon_.endpoint() + ": Received http2 header with status: 404")
        << code;
  }
  // The daemon's own words about the question.
  daemon_.failure = {grpc::StatusCode::NOT_FOUND, "no job train"};
  EXPECT_EQ(RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain).message, "no job train");
}

TEST_F(QueryClientTest, AFailureWithoutWordsNamesItsCode) {
  daemon_.failure = {grpc::StatusCode::UNIMPLEMENTED, ""};
  EXPECT_EQ(RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain).message,
            daemon_.endpoint() + " answers UNIMPLEMENTED and no message");
  daemon_.failure = {grpc::StatusCode::PERMISSION_DENIED, ""};
  const Output denied = RunGetRanks({.query = daemon_.Options(), .job = kJob}, kPlain);
  EXPECT_EQ(denied.exit_code, kDenied);
  EXPECT_EQ(denied.message, daemon_.endpoint() + " answers PERMISSION_DENIED and no message");
}

}  // namespace

}  // namespace eplb::cli
