#include "server/config/config_print.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "server/config/config_keys.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ConfigPrintTest : public ::testing::Test {
 protected:
  ~ConfigPrintTest() override { (void)std::remove(path_.c_str()); }

  DaemonConfig Load(const std::string& text, ConfigSources sources = {}) {
    std::ofstream(path_) << text;
    sources.file = path_;
    const absl::StatusOr<DaemonConfig> config = LoadConfig(sources);
    EXPECT_TRUE(config.ok()) << config.status() << "\n" << text;
    return config.ok() ? *config : DaemonConfig();
  }
  // Without comments: the values alone.
  static std::vector<std::string> ValuesOf(const DaemonConfig& config) {
    std::vector<std::string> lines;
    for (const std::string& line :
         std::vector<std::string>(absl::StrSplit(ConfigToml(config), '\n', absl::SkipEmpty()))) {
      lines.push_back(line.substr(0, line.find("  # ")));
    }
    return lines;
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/eplb-print-", getpid(), ".toml");
};

TEST_F(ConfigPrintTest, WhatIsPrintedIsReadBackAsTheSameConfiguration) {
  const DaemonConfig config = Load(R"(
[listen]
grpc = "[::1]:29610"
[http]
allowed_hosts = ["a.example.org", "b.example.org"]
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
  const DaemonConfig again = Load(ConfigToml(config));
  for (const ConfigKey& key : ConfigKeys())
    EXPECT_EQ(key.text(again), key.text(config)) << key.name;
  EXPECT_EQ(ValuesOf(again), ValuesOf(config));
  ASSERT_EQ(again.tls.identities.size(), 2U);
  EXPECT_EQ(again.tls.identities.back().jobs, (std::vector<std::string>{"a", "b-*"}));
  ASSERT_EQ(again.core.job_settings.size(), 2U);
  EXPECT_EQ(again.core.job_settings.at("a").min_gain, 0.5);
  EXPECT_EQ(again.core.job_settings.at("a").policy_name, "deepseek");
  EXPECT_EQ(again.core.job_settings.at("a.b").every_steps, 7);
}

TEST_F(ConfigPrintTest, TheDefaultsAreReadBack) {
  EXPECT_EQ(ValuesOf(Load(ConfigToml(DaemonConfig()))), ValuesOf(DaemonConfig()));
}

TEST_F(ConfigPrintTest, EachValueHasItsSource) {
  const std::string text = ConfigToml(
      Load("[policy]\nmin_gain = 0.1\nevery_steps = 10\n",
           {.environment = {{"EPLB_POLICY_EVERY_STEPS", "20"}}, .flags = {{"log.level", "warn"}}}));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("\nmin_gain = 0.1  # ", path_, ":2\n")));
  EXPECT_THAT(text, HasSubstr("\nevery_steps = 20  # EPLB_POLICY_EVERY_STEPS\n"));
  EXPECT_THAT(text, HasSubstr("\nlevel = \"warn\"  # command line\n"));
  EXPECT_THAT(text, HasSubstr("\nhorizon_steps = 1000  # default\n"));
  EXPECT_THAT(text, HasSubstr("\nintra_gbps = \"450 GB/s\"  # default\n"));
  EXPECT_THAT(text, HasSubstr("\n# cert is not set\n"));
  EXPECT_THAT(text, Not(HasSubstr("tls.identity")));
}

TEST_F(ConfigPrintTest, TheSummaryCountsWhatTheFileAndOthersSet) {
  EXPECT_EQ(ConfigSummary(Load("[policy]\nmin_gain = 0.1\n"), path_), path_ + ": ok, 1 key");
  EXPECT_EQ(ConfigSummary(Load("[policy]\nmin_gain = 0.1\nevery_steps = 3\n",
                               {.flags = {{"log.level", "warn"}}}),
                          path_),
            path_ + ": ok, 2 keys; 1 key from variables and flags");
  EXPECT_EQ(ConfigSummary(*LoadConfig({}), ""), "no file: ok, 0 keys from variables and flags");
}

}  // namespace
}  // namespace eplb
