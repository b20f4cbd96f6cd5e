#include "client/cli/context.h"

#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/json_value.h"
#include "tests/client/cli/formats/test_files.h"

namespace eplb::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTwo[] = R"(# of this site
context = "train"
endpoint = "plain:1"

[contexts.train]
endpoint = "head:29610"
tls = { ca = "ca.pem", cert = "/etc/me.pem", key = "me.key", server_name = "eplbd" }

[contexts.test]
endpoint = "unix:/run/test.sock"
)";

class ContextTest : public FilesTest {
 protected:
  void SetUp() override {
    FilesTest::SetUp();
    for (const char* name : {"EPLB_ENDPOINT", "EPLB_CONTEXT", "EPLB_TLS_CA", "EPLB_TLS_CERT",
                             "EPLB_TLS_KEY", "EPLB_TLS_SERVER_NAME"}) {
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
  std::string WriteConfig(const std::string& text) const {
    return Write("config/eplb/eplbctl.toml", text);
  }
};

TEST_F(ContextTest, TheFileNamesDaemonsWithTheirIdentities) {
  const CtlConfig config = *ReadCtlConfig(WriteConfig(kTwo));
  EXPECT_EQ(config.in_force, "train");
  EXPECT_EQ(config.address.endpoint, "plain:1");
  ASSERT_EQ(config.contexts.size(), 2U);
  EXPECT_EQ(config.contexts[0].name, "test");
  EXPECT_FALSE(config.contexts[0].address.tls.enabled());
  const DaemonAddress& train = config.contexts[1].address;
  EXPECT_EQ(train.endpoint, "head:29610");
  EXPECT_EQ(train.tls.ca, Path("config/eplb/ca.pem"));
  EXPECT_EQ(train.tls.cert, "/etc/me.pem");
  EXPECT_EQ(train.tls.server_name, "eplbd");
}

TEST_F(ContextTest, NoFileIsNoContext) {
  const CtlConfig config = *ReadCtlConfig(CtlConfigPath());
  EXPECT_TRUE(config.contexts.empty());
  EXPECT_EQ(config.in_force, "");
}

TEST_F(ContextTest, WhatIsWrongInTheFileIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[contexts.a]\nendpoint = 5", "contexts.a.endpoint: expected endpoint, tls.ca"},
      {"[contexts.a.tls]\nca = \"x\"", "contexts.a.endpoint: is not set"},
      {"[contexts.a]\nendpoint = \"h:1\"\ntls = { cafile = \"x\" }", "contexts.a.tls.cafile: "},
      {"[contexts.\"a b\"]\nendpoint = \"h:1\"", "expected a name of letters"},
      {"contexts = 3", "contexts: expected endpoint, [tls], context or"},
  };
  for (const auto& [text, message] : cases) {
    const std::string path = WriteConfig(text);
    const absl::Status status = ReadCtlConfig(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()), AllOf(StartsWith(path), HasSubstr(message)));
  }
}

TEST_F(ContextTest, ANamedContextIsAboveTheEnvironmentAndBelowAnEndpoint) {
  WriteConfig(kTwo);
  EXPECT_EQ(ResolveDaemon("", {})->endpoint, "head:29610");
  EXPECT_EQ(ResolveDaemon("", {}, "test")->endpoint, "unix:/run/test.sock");
  setenv("EPLB_CONTEXT", "test", 1);
  EXPECT_EQ(ResolveDaemon("", {})->endpoint, "unix:/run/test.sock");
  setenv("EPLB_ENDPOINT", "other:2", 1);
  EXPECT_EQ(ResolveDaemon("", {})->endpoint, "other:2");
  EXPECT_EQ(ResolveDaemon("", {}, "train")->endpoint, "head:29610");
  EXPECT_EQ(ResolveDaemon("flag:3", {}, "train")->endpoint, "flag:3");
  EXPECT_TRUE(absl::IsNotFound(ResolveDaemon("", {}, "prod").status()));
}

TEST_F(ContextTest, ANamedContextHasItsOwnIdentity) {
  WriteConfig(kTwo);
  setenv("EPLB_TLS_CA", "/env/ca.pem", 1);
  setenv("EPLB_TLS_CERT", "/env/me.pem", 1);
  setenv("EPLB_TLS_KEY", "/env/me.key", 1);
  EXPECT_EQ(ResolveDaemon("", {}, "train")->tls.ca, Path("config/eplb/ca.pem"));
  EXPECT_EQ(ResolveDaemon("", {.ca = "flag.pem"}, "train")->tls.ca, "flag.pem");
  EXPECT_EQ(ResolveDaemon("", {})->tls.ca, "/env/ca.pem");
}

TEST(WithContextInForceTest, OnlyTheOneLineChanges) {
  EXPECT_EQ(WithContextInForce("", "a"), "context = \"a\"\n");
  EXPECT_EQ(
      WithContextInForce("# x\ncontext='b'\nendpoint = \"h:1\"\n[contexts.a]\ncontext = 1", "a"),
      "context = \"a\"\n# x\nendpoint = \"h:1\"\n[contexts.a]\ncontext = 1");
  EXPECT_EQ(WithContextInForce("context = \"b\"\ncontexts.a.endpoint = \"h:1\"\n", ""),
            "contexts.a.endpoint = \"h:1\"\n");
}

TEST_F(ContextTest, UsePutsAContextInForceAndKeepsTheFile) {
  const std::string path = WriteConfig(kTwo);
  const Output dry = RunContextUse({.name = "test", .dry_run = true});
  EXPECT_EQ(dry.out, "would write " + path + ": context test is current\n");
  EXPECT_EQ(Read(path), kTwo);
  EXPECT_EQ(RunContextUse({.name = "test"}).out, "context test is current\n");
  EXPECT_EQ(ReadCtlConfig(path)->in_force, "test");
  EXPECT_THAT(Read(path), HasSubstr("# of this site\nendpoint = \"plain:1\"\n"));
  EXPECT_EQ(RunContextUse({.name = "", .none = true}).exit_code, kOk);
  EXPECT_EQ(ReadCtlConfig(path)->in_force, "");
  const Output unknown = RunContextUse({.name = "tset"});
  EXPECT_EQ(unknown.exit_code, kNotFound);
  EXPECT_THAT(unknown.message, HasSubstr("expected test, train, did you mean test?"));
}

TEST_F(ContextTest, AContextThatIsGoneLocksNobodyOut) {
  const std::string path =
      WriteConfig("context = \"gone\"\n[contexts.test]\nendpoint = \"unix:/run/test.sock\"\n");
  EXPECT_THAT(std::string(ResolveDaemon("", {}).status().message()),
              HasSubstr("no context \"gone\", expected test"));
  EXPECT_EQ(ResolveDaemon("", {}, "test")->endpoint, "unix:/run/test.sock");
  EXPECT_THAT(RunContextList(Format::kTable).message, HasSubstr("no context \"gone\""));
  EXPECT_EQ(RunContextUse({.name = "test"}).exit_code, kOk);
  EXPECT_EQ(ReadCtlConfig(path)->in_force, "test");
}

TEST_F(ContextTest, AFormThatUseCannotChangeStaysAsItIs) {
  for (const char* line : {"\"context\" = \"train\"", "context = '''\ntrain'''"}) {
    const std::string text = absl::StrCat(line,
                                          "\n[contexts.train]\nendpoint = \"h:1\"\n"
                                          "[contexts.test]\nendpoint = \"h:2\"\n");
    const std::string path = WriteConfig(text);
    ASSERT_TRUE(ReadCtlConfig(path).ok()) << text;
    const Output output = RunContextUse({.name = "test"});
    EXPECT_EQ(output.exit_code, kUsage) << text;
    EXPECT_THAT(output.message, HasSubstr("set context by hand"));
    EXPECT_EQ(Read(path), text);
  }
}

TEST_F(ContextTest, ListMarksTheOneInForce) {
  WriteConfig(kTwo);
  EXPECT_EQ(RunContextList(Format::kTable).out,
            "  test   unix:/run/test.sock\n* train  head:29610  TLS\n");
  const std::string json = RunContextList(Format::kJson).out;
  EXPECT_TRUE(wire::ParseJson(json).ok());
  EXPECT_THAT(json, StartsWith("{\"context\":\"train\",\"contexts\":[{\"name\":\"test\","));
}

TEST_F(ContextTest, EachSourceYieldsToTheOneBefore) {
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

TEST_F(ContextTest, EveryFormThatGrpcTakesIsAccepted) {
  for (const char* good : {"host:1", "127.0.0.1:65535", "[::1]:29610", "unix:/a/b", "unix:b"}) {
    EXPECT_EQ(ResolveDaemon(good, {})->endpoint, good);
  }
  EXPECT_EQ(ResolveDaemon("/run/x.sock", {})->endpoint, "unix:/run/x.sock");
}

TEST_F(ContextTest, WhatIsNoEndpointIsRefusedWithItsSource) {
  for (const char* bad : {"host", "host:", ":1", "host:0", "host:65536", "host:x", "::1:5",
                          "unix:", "a b:1", "http://host:1"}) {
    EXPECT_THAT(Error(bad), HasSubstr("--endpoint: endpoint is \"" + std::string(bad)));
  }
  setenv("EPLB_ENDPOINT", "nowhere", 1);
  EXPECT_THAT(Error(""), HasSubstr("EPLB_ENDPOINT: endpoint is"));
}

TEST_F(ContextTest, ABrokenConfigFileIsNamed) {
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

TEST_F(ContextTest, TheConfigurationFileHasTheCertificatesOfItsDaemon) {
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

TEST_F(ContextTest, CertificatesWithoutAnEndpointAreForEveryDaemon) {
  Write("config/eplb/eplbctl.toml", "[tls]\nca = \"/etc/ca.pem\"\n");
  EXPECT_EQ(ResolveDaemon("other:2", {})->tls.ca, "/etc/ca.pem");
}

}  // namespace
}  // namespace eplb::cli
