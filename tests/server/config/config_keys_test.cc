#include "server/config/config_keys.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "server/core/values/config.h"

namespace eplb {
namespace {

TEST(ConfigKeysTest, StepsOfWindowsAndVotesReachTheCore) {
  DaemonConfig config;
  EXPECT_EQ(core::Config(config.keys).report_every_steps, 50);
  EXPECT_EQ(core::Config(config.keys).vote_every_steps, 8) << "as the client library chooses";
  for (const char* key : {"report.every_steps", "vote.every_steps"}) {
    EXPECT_TRUE(SetConfigKey(key, {.text = "12"}, &config).ok()) << key;
    EXPECT_FALSE(SetConfigKey(key, {.text = "-1"}, &config).ok()) << key;
    EXPECT_FALSE(SetConfigKey(key, {.text = "1048577"}, &config).ok()) << key;
  }
  EXPECT_EQ(core::Config(config.keys).report_every_steps, 12);
  EXPECT_EQ(core::Config(config.keys).vote_every_steps, 12);
  EXPECT_FALSE(SetConfigKey("report.every_steps", {.text = "0"}, &config).ok());
  EXPECT_TRUE(SetConfigKey("vote.every_steps", {.text = "0"}, &config).ok()) << "not compared";
}

TEST(ConfigKeysTest, NoKeyIsThereTwice) {
  std::set<std::string> names;
  for (const ConfigKey& key : ConfigKeys()) EXPECT_TRUE(names.insert(key.FullName()).second);
}

TEST(ConfigKeysTest, EverySettingIsAKeyOfTheDaemonAndOfAJob) {
  DaemonConfig config;
  for (const ConfigKey& key : ConfigKeys()) {
    if (!key.of_jobs()) continue;
    const std::string text = ScalarText(key.Get(config));
    EXPECT_TRUE(SetConfigKey(key.FullName(), {.text = text}, &config).ok()) << key.name;
    const std::string of_job = "jobs.a.b." + key.name;
    EXPECT_TRUE(SetConfigKey(of_job, {.text = text}, &config).ok()) << of_job;
  }
  EXPECT_EQ(core::Config(config.keys).settings, wire::Settings());
  EXPECT_EQ(core::Config(config.keys).job_settings.at("a.b"), wire::PatchOf(wire::Settings()));
}

TEST(ConfigKeysTest, BandwidthsThatNoKeyGivesAreTheAssumedOnes) {
  const Costs costs = core::Config(DaemonConfig().keys).costs;
  EXPECT_EQ(costs.bandwidths, BandwidthSource::kAssumed);
  EXPECT_EQ(costs.intra_bytes_per_s, Costs().intra_bytes_per_s);
  EXPECT_EQ(costs.inter_bytes_per_s, Costs().inter_bytes_per_s);
}

TEST(VariableOfTest, PointsAndLowerCaseBecomeAVariable) {
  EXPECT_EQ(VariableOf("policy.every_steps"), "EPLB_POLICY_EVERY_STEPS");
}

}  // namespace
}  // namespace eplb
