#include "client/cli/daemon_address.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "tests/client/cli/formats/test_files.h"

namespace eplb::cli {
namespace {

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
  // A service's own socket would precede the default.
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
              "--tls-ca, --tls-cert, --tls-key and --tls-server-name need --endpoint: without one "
              "the daemon is at unix:" +
                  path + ", which has no TLS");
    EXPECT_TRUE(ResolveDaemon("head:1", {.ca = "/etc/ca.pem"})->tls.enabled());
    close(socket_fd);
    // The socket that a killed daemon leaves is skipped.
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

}  // namespace
}  // namespace eplb::cli
