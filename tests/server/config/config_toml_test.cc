#include "server/config/config_toml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "server/config/config_keys.h"
#include "server/core/values/config.h"

namespace eplb {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// The values of the configuration as it is printed, without comments.
std::vector<std::string> ValuesOf(const DaemonConfig& config) {
  std::vector<std::string> lines = absl::StrSplit(ConfigToml(config), '\n', absl::SkipEmpty());
  for (std::string& line : lines) line.resize(std::min(line.size(), line.find("  # ")));
  return lines;
}

class ConfigFileTest : public ::testing::Test {
 protected:
  ~ConfigFileTest() override { (void)std::remove(path_.c_str()); }

  absl::StatusOr<DaemonConfig> Load(const std::string& text, ConfigSources sources = {}) {
    std::ofstream(path_) << text;
    sources.file = path_;
    return LoadConfig(sources);
  }
  std::string ErrorOf(const std::string& text) {
    const absl::StatusOr<DaemonConfig> config = Load(text);
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    std::string message(config.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }

  const std::string path_ =
      absl::StrCat(::testing::TempDir(), "/eplb-config-", getpid(), "-",
                   ::testing::UnitTest::GetInstance()->current_test_info()->name(), ".toml");
};

TEST_F(ConfigFileTest, DefaultsServeWithoutAFile) {
  const DaemonConfig config = *LoadConfig({});
  EXPECT_EQ(config.grpc().Text(), "127.0.0.1:29610");
  EXPECT_EQ(config.http().Text(), "127.0.0.1:29611");
  EXPECT_EQ(wire::SettingsText(core::Config(config.keys).settings, {}),
            "name=auto mode=apply every_steps=0 min_gain=0.01 horizon_steps=1000 "
            "freeze_steps=never max_pause=200ms layers_per_chunk=64 hierarchy=auto "
            "gpu_speeds=observe stated_speeds=none avoid_gpus=none");
  EXPECT_EQ(config.keys.drain().grace_seconds(), 10);
  EXPECT_THAT(config.allowed_hosts(), ::testing::IsEmpty());
  EXPECT_FALSE(config.keys.metrics().per_expert());
}

TEST_F(ConfigFileTest, EveryKindOfValueIsRead) {
  const DaemonConfig config = *Load(R"(
listen.grpc = "unix:/tmp/eplbd.sock"
[policy]
name = "deepseek"
freeze_steps = "10:20"
[drain]
grace = "1500ms"
[limits]
max_jobs = 3
[store]
path = "memory"
[http]
allowed_hosts = ["eplb.example.org", "node_7"]
[metrics]
per_expert = true
)");
  EXPECT_EQ(config.grpc().Text(), "unix:/tmp/eplbd.sock");
  EXPECT_EQ(core::Config(config.keys).settings.policy.name, "deepseek");
  EXPECT_EQ(core::Config(config.keys).settings.freeze_steps.first, 10);
  EXPECT_EQ(core::Config(config.keys).settings.freeze_steps.last, 20);
  EXPECT_EQ(config.keys.drain().grace_seconds(), 1.5);
  EXPECT_EQ(core::Config(config.keys).max_jobs, 3);
  EXPECT_EQ(config.keys.store().path(), "memory");
  EXPECT_THAT(config.allowed_hosts(), ::testing::ElementsAre("eplb.example.org", "node_7"));
  EXPECT_TRUE(config.keys.metrics().per_expert());
}

TEST_F(ConfigFileTest, ATableInATableHoldsKeys) {
  const std::string head = "[store]\nbackend = \"etcd\"\n";
  const DaemonConfig config = *Load(head + R"([store.etcd]
endpoints = ["http://a:2379", "http://b:2379"]
lease_seconds = 7
)");
  EXPECT_EQ(config.keys.store().backend(), "etcd");
  EXPECT_EQ(config.keys.store().etcd().endpoints(), "http://a:2379,http://b:2379");
  EXPECT_EQ(config.keys.store().etcd().lease_seconds(), 7);
  EXPECT_THAT(
      ErrorOf(head + "[store.etcd]\nlease_second = 7\n"),
      HasSubstr("store.etcd.lease_second: unknown key, did you mean store.etcd.lease_seconds?"));
}

TEST_F(ConfigFileTest, EnvironmentBeatsFileAndFlagBeatsEnvironment) {
  const std::string text = "[policy]\nevery_steps = 1\nmin_gain = 0.1\n[limits]\nmax_jobs = 9\n";
  const DaemonConfig config = *Load(
      text, {.environment = {{"EPLB_POLICY_EVERY_STEPS", "2"}, {"EPLB_POLICY_MIN_GAIN", "0.2"}},
             .flags = {{"policy.every_steps", "3"}}});
  EXPECT_EQ(core::Config(config.keys).settings.every_steps, 3);
  EXPECT_EQ(core::Config(config.keys).settings.min_gain, 0.2);
  EXPECT_EQ(core::Config(config.keys).max_jobs, 9);
}

TEST_F(ConfigFileTest, AnErrorNamesFileLineKeyAndValueAndSuggestsOnlyWhatIsNear) {
  const std::pair<const char*, const char*> cases[] = {
      {"[policy]\nmin_gain = 1.5\n", ":2: policy.min_gain = 1.5: expected a number in 0..1"},
      {"[policy]\nevery_step = 5\n",
       ":2: policy.every_step: unknown key, did you mean policy.every_steps?"},
      {"[polcy]\nname = \"deepseek\"\n", ":2: polcy.name: unknown key, did you mean policy.name?"},
      {"foo.bar = 1", ":1: foo.bar: unknown key"},
      {"polyc.namee = 1", ":1: polyc.namee: unknown key, did you mean policy.name?"},
      {"[foo.bar]", ":1: foo.bar: unknown key"},
      {"\n[foo]\n", ":2: foo: unknown table"},
      {"[polcy]", ":1: polcy: unknown table, did you mean policy?"}};
  for (const auto& [text, error] : cases) EXPECT_EQ(ErrorOf(text), path_ + error);
  EXPECT_TRUE(Load("[policy]\n[jobs]\n[tls]\n").ok()) << "empty tables";
  EXPECT_THAT(ErrorOf("policy = 3\n"), HasSubstr("policy: unknown key"));
  for (const auto& [text, error] :
       {std::pair("[policy.name]\nx = 1\n", "policy.name = a table: expected one of"),
        {"[policy.name]\n", "policy.name = a table: expected one of"},
        {"policy.name = 07:32:00", "policy.name = a date or time: expected"}}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr(error));
  }
}

TEST_F(ConfigFileTest, ATableOfAJobHasANameThatAJobMayHave) {
  const std::string rule = ": expected a job's name, 1..128 letters, digits, '.', '_' and '-'";
  EXPECT_EQ(ErrorOf("[jobs.\"a b\"]\n"), path_ + ":1: jobs.\"a b\"" + rule);
  EXPECT_EQ(ErrorOf("[jobs.\"a\\nb\"]\nfoo = 1"), path_ + ":1: jobs.\"a b\"" + rule);
  EXPECT_EQ(ErrorOf("[jobs.\"\u00fc\"]\n"), path_ + ":1: jobs.\"\u00fc\"" + rule);
  EXPECT_EQ(ErrorOf("[jobs.\"\"]\n"), path_ + ":1: jobs.\"\"" + rule);
  EXPECT_EQ(ErrorOf("[jobs." + std::string(129, 'a') + "]\n"),
            path_ + ":1: jobs.\"" + std::string(129, 'a') + "\"" + rule);
  EXPECT_TRUE(Load("[jobs." + std::string(128, 'a') + "]\n").ok());
  EXPECT_THAT(ErrorOf("[jobs.a]\n\"b\\nc\" = 1"), HasSubstr("jobs.a.b c: expected"));
  EXPECT_THAT(std::string(LoadConfig({.flags = {{"jobs.a b.min_gain", "1"}}}).status().message()),
              HasSubstr(rule));
}

TEST_F(ConfigFileTest, ANumberKeepsAllItsDigits) {
  const DaemonConfig config =
      *Load("policy.min_gain = 0.0123456789012345\n[jobs.demo]\nmin_gain = 0.0223456789\n");
  EXPECT_EQ(core::Config(config.keys).settings.min_gain, 0.0123456789012345);
  EXPECT_EQ(core::Config(config.keys).job_settings.at("demo").at("min_gain"), Scalar(0.0223456789));
}

TEST_F(ConfigFileTest, APipeIsRefusedAndNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(std::string(LoadConfig({.file = path_}).status().message()),
            path_ + ": is not a regular file");
}

TEST_F(ConfigFileTest, TheFilesOfTlsComeTogether) {
  EXPECT_EQ(ErrorOf("tls.cert = \"x\""), "tls.cert is set and tls.key is not; TLS needs all three");
  EXPECT_EQ(ErrorOf("[tls.identity]\n\"a\" = { role = \"viewer\", jobs = [\"*\"] }"),
            "tls.identity has rules, and tls.cert is not set");
  const DaemonConfig config = *Load("tls.cert = \"c\"\ntls.key = \"k\"\ntls.ca = \"ca\"");
  EXPECT_TRUE(config.tls().enabled());
  EXPECT_EQ(config.tls().ca, "ca");
}

TEST_F(ConfigFileTest, LettersOutsideAsciiStandInStringsAndCommentsOnly) {
  EXPECT_EQ(ErrorOf("# \u00e9\nstore.path = \"\u00e9\"\n[\uFBAF]\n"),
            path_ +
                ":3: not TOML: a letter that is not ASCII outside strings and comments, or "
                "behind a backslash");
  const auto path_of = [this](const std::string& text) { return Load(text)->keys.store().path(); };
  EXPECT_EQ(path_of("\xEF\xBB\xBFstore.path = \"\u00e9\\\"#\" # \u3042\n"), "\u00e9\"#");
  EXPECT_EQ(path_of("store.path = \"\"\"\n\u3042\"\"x\"\"\" # \u3042"), "\u3042\"\"x");
  EXPECT_EQ(path_of("store.path='\u3042\\'\n"), "\u3042\\");
  EXPECT_EQ(path_of("store={path=\"\u3042\"}"), "\u3042");
  EXPECT_EQ(path_of("\"store\".\"path\" = \"\u3042\""), "\u3042");
  EXPECT_THAT(ErrorOf("store.path = \"a\n\u3042 = 1"), HasSubstr(":2: not TOML"));
  for (const char* text : {"limits.max_jobs = 19'x\u3042'", "z = 1=79-['\u3042'", "z = [1'\u3042']",
                           "z = \"a\"\"\u3042\""}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("a letter that is not ASCII")) << text;
  }
}

constexpr char kTlsFiles[] = "[tls]\ncert = \"c\"\nkey = \"k\"\nca = \"ca\"\n[tls.identity]\n";

TEST_F(ConfigFileTest, IdentitiesHaveARoleAndJobs) {
  const DaemonConfig config = *Load(
      absl::StrCat(kTlsFiles, R"("spiffe://x/train/*" = { role = "member", jobs = ["a", "b-*"] }
"ops.x" = { role = "operator", jobs = ["*"] }
)"));
  ASSERT_EQ(config.identities.size(), 2U);
  EXPECT_EQ(config.identities[0].pattern, "ops.x");
  EXPECT_EQ(config.identities[0].role, AccessRole::kOperator);
  EXPECT_EQ(config.identities[1].role, AccessRole::kMember);
  EXPECT_EQ(config.identities[1].jobs, (std::vector<std::string>{"a", "b-*"}));
}

TEST_F(ConfigFileTest, EachBadIdentityNamesItsLineAndWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"\"a*b\" = { role = \"viewer\", jobs = [\"*\"] }", "with * at the end or nowhere"},
      {"\"a\" = 3", "with * at the end or nowhere"},
      {"\"\" = { role = \"viewer\", jobs = [\"*\"] }", "with * at the end or nowhere"},
      {"\"a\" = { jobs = [\"*\"] }", "role: expected"},
      {"\"a\" = { role = \"local\", jobs = [\"*\"] }", "role: expected"},
      {"\"a\" = { role = \"viewer\" }", "jobs: expected a list"},
      {"\"a\" = { role = \"viewer\", jobs = [] }", "jobs: expected a list"},
      {"\"a\" = { role = \"viewer\", jobs = [\"*a\"] }", "jobs: expected names"},
      {"\"a\" = { role = \"viewer\", jobs = [1] }", "jobs: expected names"},
      {"\"a\" = { role = \"viewer\", jobs = [\"*\"], rank = 1 }", "unknown key rank"}};
  for (const auto& [rule, error] : cases) {
    EXPECT_THAT(ErrorOf(absl::StrCat(kTlsFiles, rule)), AllOf(HasSubstr(":6: "), HasSubstr(error)))
        << rule;
  }
}

TEST_F(ConfigFileTest, AValueOfSeveralLinesIsShownOnOne) {
  EXPECT_THAT(ErrorOf("limits.max_jobs = \"\"\"\na\nb\"\"\""), HasSubstr("= a b: expected"));
  EXPECT_THAT(ErrorOf("\"a\\nb\" = 1"), HasSubstr("a b: unknown key"));
}

TEST_F(ConfigFileTest, AJobMayHaveSettingsOfItsOwn) {
  const DaemonConfig config = *Load(R"(
migration.max_pause = "50ms"
policy.mode = "observe"
limits.job_expiry = "2h"
limits.max_history = 8
[jobs.train]
name = "incremental"
mode = "apply"
every_steps = 7
min_gain = 0.5
[jobs."v3.large"]
horizon_steps = 9
freeze_steps = "1:2"
max_pause = "1s"
layers_per_chunk = 3
)");
  EXPECT_EQ(core::Config(config.keys).settings.max_pause, absl::Milliseconds(50));
  EXPECT_TRUE(core::Config(config.keys).settings.observe);
  EXPECT_EQ(core::Config(config.keys).job_expiry, absl::Hours(2));
  EXPECT_EQ(config.keys.limits().max_history(), 8);
  const auto jobs = core::Config(config.keys).job_settings;
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(wire::PatchText(jobs.at("train")),
            "name=incremental mode=apply every_steps=7 min_gain=0.5");
  EXPECT_EQ(wire::PatchText(jobs.at("v3.large")),
            "horizon_steps=9 freeze_steps=1:2 max_pause=1s layers_per_chunk=3");
}

TEST_F(ConfigFileTest, CostsAreUnknownByDefaultAndReadInTheirUnits) {
  const Costs unknown = core::Config().costs;
  EXPECT_FALSE(unknown.priced());
  EXPECT_EQ(core::Config().settings.horizon_steps, 1000);
  const DaemonConfig config = *Load(R"(
policy.horizon_steps = 500
[cost]
token_ns = 500
intra_gbps = 900
inter_gbps = 12.5
stall = "20ms"
gradient_bytes = 176160768
)");
  const Costs costs = core::Config(config.keys).costs;
  EXPECT_EQ(core::Config(config.keys).settings.horizon_steps, 500);
  EXPECT_DOUBLE_EQ(costs.token_seconds, 500e-9);
  EXPECT_DOUBLE_EQ(costs.intra_bytes_per_s, 900e9);
  EXPECT_DOUBLE_EQ(costs.inter_bytes_per_s, 12.5e9);
  EXPECT_DOUBLE_EQ(costs.stall_seconds, 0.02);
  EXPECT_EQ(costs.replica_gradient_bytes, 176160768);
}

TEST_F(ConfigFileTest, ValuesOfTheWrongTypeOrRangeAreRefused) {
  for (const char* text : {"policy.name = \"magic\"",
                           "policy.name = 3",
                           "policy.mode = \"watch\"",
                           "migration.max_pause = \"0s\"",
                           "jobs.a.every_steps = -1",
                           "jobs.a.every = 1",
                           "jobs.a = 1",
                           "limits.job_expiry = \"0s\"",
                           "limits.max_history = 0",
                           "policy.every_steps = -1",
                           "policy.every_steps = \"200\"",
                           "policy.every_steps = 1.5",
                           "policy.every_steps = 9223372036854775807",
                           "policy.min_gain = nan",
                           "policy.min_gain = inf",
                           "policy.min_gain = -0.1",
                           "policy.min_gain = true",
                           "policy.horizon_steps = 0",
                           "cost.token_ns = -1",
                           "cost.token_ns = inf",
                           "cost.intra_gbps = 0",
                           "cost.inter_gbps = nan",
                           "cost.stall = 20",
                           "cost.gradient_bytes = 1.5",
                           "policy.freeze_steps = \"5\"",
                           "policy.freeze_steps = \"5:4\"",
                           "policy.freeze_steps = \"-1:4\"",
                           "policy.freeze_steps = \"a:b\"",
                           "drain.grace = \"-1s\"",
                           "drain.grace = 10",
                           "drain.grace = \"inf\"",
                           "listen.grpc = \"localhost\"",
                           "listen.http = \"unix:/x\"",
                           "listen.http = 80",
                           "listen.grpc = \"127.0.0.1:99999\"",
                           "http.allowed_hosts = [1]",
                           "http.allowed_hosts = \"a:80\"",
                           "metrics.per_expert = \"true\"",
                           "metrics.per_expert = 1",
                           "log.level = \"loud\"",
                           "store.path = \"\"",
                           "limits.max_jobs = [1]",
                           "limits.session_grace = 1979-05-27"}) {
    EXPECT_THAT(ErrorOf(text), AllOf(StartsWith(path_ + ":1: "), HasSubstr("expected"))) << text;
  }
}

TEST_F(ConfigFileTest, WhatIsNotTomlIsRefusedWithItsLine) {
  EXPECT_THAT(ErrorOf("[policy]\nname = \n"), StartsWith(path_ + ":2: not TOML: "));
  EXPECT_THAT(ErrorOf("policy.min_gain = 0.1\npolicy.min_gain = 0.2\n"), HasSubstr("not TOML"));
  EXPECT_THAT(ErrorOf(std::string(2 << 20, '#')), HasSubstr("at most 1048576 are read"));
}

TEST_F(ConfigFileTest, WhatIsPrintedIsReadBackAsTheSameConfiguration) {
  const DaemonConfig config = *Load(R"(
[listen]
grpc = "[::1]:29610"
[http]
allowed_hosts = ["a.example.org", "b.example.org"]
[metrics]
per_expert = true
[policy]
mode = "observe"
freeze_steps = "10:20"
min_gain = 0.125
[cost]
inter_gbps = "400Gb/s"
stall = "1500us"
[store]
path = "/tmp/a \"quoted\" place.db"
[tls]
cert = "c.pem"
key = "k.pem"
ca = "a.pem"
[tls.identity]
"spiffe://example.org/train/*" = { role = "member", jobs = ["a", "b-*"] }
"ops.example.org" = { role = "operator", jobs = ["*"] }
[jobs."a"]
min_gain = 0.5
name = "deepseek"
[jobs."a.b"]
mode = "apply"
every_steps = 7
)");
  const DaemonConfig again = *Load(ConfigToml(config));
  for (const ConfigKey& key : ConfigKeys())
    EXPECT_EQ(ScalarText(key.Get(again)), ScalarText(key.Get(config))) << key.name;
  EXPECT_EQ(ValuesOf(again), ValuesOf(config));
  ASSERT_EQ(again.identities.size(), 2U);
  EXPECT_EQ(again.identities.back().jobs, (std::vector<std::string>{"a", "b-*"}));
  const auto& jobs = again.keys.jobs();
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs.at("a").min_gain(), 0.5);
  EXPECT_EQ(jobs.at("a").name(), "deepseek");
  EXPECT_EQ(jobs.at("a.b").every_steps(), 7U);
}

TEST_F(ConfigFileTest, EachValueHasItsSource) {
  const std::string text = ConfigToml(*Load(
      "[policy]\nmin_gain = 0.1\nevery_steps = 10\n",
      {.environment = {{"EPLB_POLICY_EVERY_STEPS", "20"}}, .flags = {{"log.level", "warn"}}}));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("\nmin_gain = 0.1  # ", path_, ":2\n")));
  EXPECT_THAT(text, HasSubstr("\nevery_steps = 20  # EPLB_POLICY_EVERY_STEPS\n"));
  EXPECT_THAT(text, HasSubstr("\nlevel = \"warn\"  # command line\n"));
  EXPECT_THAT(text, HasSubstr("\nhorizon_steps = 1000  # default\n"));
  EXPECT_THAT(text, HasSubstr("\nintra_gbps = \"450 GB/s\"  # default\n"));
  EXPECT_THAT(text, HasSubstr("\n# cert is not set\n"));
  EXPECT_THAT(text, Not(HasSubstr("tls.identity")));
}

TEST_F(ConfigFileTest, TheSummaryCountsWhatTheFileAndOthersSet) {
  EXPECT_EQ(ConfigSummary(*Load("[policy]\nmin_gain = 0.1\n"), path_), path_ + ": ok, 1 key");
  EXPECT_EQ(ConfigSummary(*Load("[policy]\nmin_gain = 0.1\nevery_steps = 3\n",
                                {.flags = {{"log.level", "warn"}}}),
                          path_),
            path_ + ": ok, 2 keys; 1 key from variables and flags");
  EXPECT_EQ(ConfigSummary(*LoadConfig({}), ""), "no file: ok, 0 keys from variables and flags");
}

}  // namespace
}  // namespace eplb
