#include "client/cli/context.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"

#include "base/json_value.h"
#include "tests/client/cli/formats/test_files.h"

namespace eplb::cli {
namespace {

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
    std::filesystem::create_directories(Path("config/eplb"));
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
  EXPECT_EQ(dry.out, "would write " + path + ": context test is in force\n");
  EXPECT_EQ(Read(path), kTwo);
  EXPECT_EQ(RunContextUse({.name = "test"}).out, "context test is in force\n");
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

}  // namespace
}  // namespace eplb::cli
