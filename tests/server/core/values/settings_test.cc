#include "server/core/values/settings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

TEST(SettingsTest, StepsAreARangeOrNothing) {
  EXPECT_EQ(*ParseSteps("3:9"), (StepRange{3, 9}));
  EXPECT_EQ(*ParseSteps(""), StepRange());
  EXPECT_TRUE(ParseSteps("3:9")->Holds(9));
  EXPECT_FALSE(ParseSteps("")->Holds(0));
  EXPECT_EQ(StepsText({3, 9}), "3:9");
  EXPECT_EQ(StepsText({}), "");
  for (const char* text : {"3", "9:3", "-1:3", "a:b", ":", "1:2:3"}) {
    EXPECT_FALSE(ParseSteps(text).ok()) << text;
  }
}

TEST(SettingsTest, APatchOutOfRangeIsRefusedByField) {
  const std::vector<std::pair<SettingsPatch, std::string>> bad = {
      {{.policy_name = "magic"}, "name is \"magic\""},
      {{.mode = "watch"}, "mode is \"watch\""},
      {{.every_steps = 0}, "every_steps is 0"},
      {{.min_gain = 1.5}, "min_gain is 1.5"},
      {{.min_gain = std::nan("")}, "min_gain is nan"},
      {{.horizon_steps = -1}, "horizon_steps is -1"},
      {{.freeze_steps = "x"}, "freeze_steps is \"x\""},
      {{.freeze_steps = std::string(16000, '0') + ":1"}, "0000...\", expected A:B"},
      {{.max_pause = absl::ZeroDuration()}, "max_pause is 0"},
      {{.max_pause = absl::InfiniteDuration()}, "max_pause is inf"},
      {{.layers_per_chunk = 0}, "layers_per_chunk is 0"}};
  for (const auto& [patch, text] : bad) {
    const absl::Status status = CheckPatch(patch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status;
  }
  EXPECT_TRUE(CheckPatch({.policy_name = "deepseek", .mode = "observe", .freeze_steps = ""}).ok());
}

TEST(SettingsTest, TheLaterPatchWinsAndTheRestStays) {
  const SettingsPatch merged =
      Merged({.every_steps = 1, .min_gain = 0.5}, {.every_steps = 2, .layers_per_chunk = 3});
  EXPECT_EQ(merged, (SettingsPatch{.every_steps = 2, .min_gain = 0.5, .layers_per_chunk = 3}));
  const Settings settings = Patched({}, merged);
  EXPECT_EQ(settings.every_steps, 2);
  EXPECT_EQ(settings.layers_per_chunk, 3);
  EXPECT_EQ(settings.horizon_steps, Settings().horizon_steps);
  EXPECT_EQ(SettingsText(settings, {.min_gain = 0.1}), "min_gain=0.5");
}

TEST(SettingsTest, AJobsOwnConfigurationIsOverTheDaemonsAndUnderTheOperators) {
  Config config = TestConfig();
  config.job_settings[kJob] = {.every_steps = 30, .min_gain = 0.3};
  TestJob job(config);
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().settings.every_steps, 30);
  EXPECT_EQ(job.daemon.View().settings.layers_per_chunk, 2);
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{.every_steps = 50}}).ok());
  job.daemon.Restart();
  EXPECT_EQ(job.daemon.View().settings.every_steps, 50);
  EXPECT_EQ(job.daemon.View().settings.min_gain, 0.3);
}

TEST(SettingsTest, AStoredPatchThatIsNotValidAnyMoreIsLeftOut) {
  StoredJob stored{kJob, 4, 9, Exchanged({1})};
  stored.memory.settings.policy_name = "of-another-version";
  const Core core(TestConfig(), 0, {stored}, absl::UnixEpoch());
  EXPECT_EQ(core.Job(kJob, absl::UnixEpoch())->settings.policy_name, "incremental");
}

}  // namespace
}  // namespace eplb::core
