#include "client/cli/daemon/endpoint.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "tests/client/files/test_files.h"

namespace eplb::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class EndpointTest : public FilesTest {
 protected:
  void SetUp() override {
    FilesTest::SetUp();
    unsetenv("EPLB_ENDPOINT");
    setenv("XDG_CONFIG_HOME", Path("config").c_str(), 1);
    setenv("XDG_RUNTIME_DIR", Path("run").c_str(), 1);
    std::filesystem::create_directories(Path("config/eplb"));
    std::filesystem::create_directories(Path("run/eplb"));
  }
  std::string Error(const std::string& flag) const {
    return std::string(ResolveEndpoint(flag).status().message());
  }
};

TEST_F(EndpointTest, EachSourceYieldsToTheOneBefore) {
  // A service's own socket would come before the default.
  if (!std::filesystem::exists("/run/eplb/eplbd.sock")) {
    EXPECT_EQ(*ResolveEndpoint(""), "127.0.0.1:29610");
    const int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    const std::string path = Path("run/eplb/eplbd.sock");
    ASSERT_LT(path.size(), sizeof(address.sun_path));
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(*ResolveEndpoint(""), "unix:" + path);
    close(socket_fd);
  }
  Write("config/eplb/eplbctl.toml", "endpoint = \"head:1\"\n");
  EXPECT_EQ(*ResolveEndpoint(""), "head:1");
  setenv("EPLB_ENDPOINT", "other:2", 1);
  EXPECT_EQ(*ResolveEndpoint(""), "other:2");
  EXPECT_EQ(*ResolveEndpoint("flag:3"), "flag:3");
}

TEST_F(EndpointTest, EveryFormThatGrpcTakesIsAccepted) {
  for (const char* good : {"host:1", "127.0.0.1:65535", "[::1]:29610", "unix:/a/b", "unix:b"}) {
    EXPECT_EQ(*ResolveEndpoint(good), good);
  }
  EXPECT_EQ(*ResolveEndpoint("/run/x.sock"), "unix:/run/x.sock");
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
                                                       {"server = \"a:1\"", "server: expected"},
                                                       {"endpoint = \"x\"", "endpoint is \"x\""}};
  for (const auto& [content, message] : cases) {
    const std::string path = Write("config/eplb/eplbctl.toml", content);
    EXPECT_THAT(Error(""), AllOf(StartsWith(path + ":"), HasSubstr(message)));
  }
}

}  // namespace
}  // namespace eplb::cli
