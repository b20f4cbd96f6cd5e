#include "server/config/config_keys.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

namespace eplb {
namespace {

TEST(ConfigKeysTest, StepsOfWindowsAndVotesReachTheCore) {
  DaemonConfig config;
  EXPECT_EQ(config.core.report_every_steps, 50);
  EXPECT_EQ(config.core.vote_every_steps, 8) << "as the client library chooses";
  for (const char* key : {"report.every_steps", "vote.every_steps"}) {
    EXPECT_TRUE(SetConfigKey(key, {.text = "12"}, &config).ok()) << key;
    EXPECT_FALSE(SetConfigKey(key, {.text = "-1"}, &config).ok()) << key;
    EXPECT_FALSE(SetConfigKey(key, {.text = "1048577"}, &config).ok()) << key;
  }
  EXPECT_EQ(config.core.report_every_steps, 12);
  EXPECT_EQ(config.core.vote_every_steps, 12);
  EXPECT_FALSE(SetConfigKey("report.every_steps", {.text = "0"}, &config).ok());
  EXPECT_TRUE(SetConfigKey("vote.every_steps", {.text = "0"}, &config).ok()) << "not compared";
}

TEST(ConfigKeysTest, NoKeyIsThereTwice) {
  const std::span<const ConfigKey> keys = ConfigKeys();
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(keys[i].name, keys[j].name);
  }
}

TEST(ConfigKeysTest, EverySettingIsAKeyOfTheDaemonAndOfAJob) {
  DaemonConfig config;
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.setting == nullptr) continue;
    const std::string text = ScalarText(key.get(config));
    EXPECT_TRUE(SetConfigKey(key.name, {.text = text}, &config).ok()) << key.name;
    const std::string of_job = "jobs.a.b." + std::string(key.setting->name);
    EXPECT_TRUE(SetConfigKey(of_job, {.text = text}, &config).ok()) << of_job;
  }
  EXPECT_EQ(config.core.settings, wire::Settings());
  EXPECT_EQ(config.core.job_settings.at("a.b"), wire::PatchOf(wire::Settings()));
}

TEST(VariableOfTest, PointsAndLowerCaseBecomeAVariable) {
  EXPECT_EQ(VariableOf("policy.every_steps"), "EPLB_POLICY_EVERY_STEPS");
}

}  // namespace
}  // namespace eplb
