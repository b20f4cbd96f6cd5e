#include "proto/wire/settings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace eplb::wire {
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
      {{{"name", "magic"}}, "name is \"magic\""},
      {{{"mode", "watch"}}, "mode is \"watch\""},
      {{{"every_steps", -1}}, "every_steps is -1"},
      {{{"min_gain", 1.5}}, "min_gain is 1.5"},
      {{{"min_gain", std::nan("")}}, "min_gain is nan"},
      {{{"horizon_steps", -1}}, "horizon_steps is -1"},
      {{{"freeze_steps", "x"}}, "freeze_steps is \"x\""},
      {{{"freeze_steps", std::string(16000, '0') + ":1"}}, "0000...\", expected \"A:B\""},
      {{{"max_pause", absl::ZeroDuration()}}, "max_pause is 0"},
      {{{"max_pause", absl::InfiniteDuration()}}, "max_pause is inf"},
      {{{"layers_per_chunk", 0}}, "layers_per_chunk is 0"},
      {{{"hierarchy", "loose"}}, "hierarchy is \"loose\", expected"},
      {{{"gpu_speeds", "on"}}, "gpu_speeds is \"on\", expected"},
      {{{"stated_speeds", "3"}}, "stated_speeds is \"3\", expected \"GPU:SPEED,..\""},
      {{{"avoid_gpus", "7,3"}}, "avoid_gpus is \"7,3\", expected \"GPU,..\""},
      {{{"every_step", 1}}, "every_step is no setting"}};
  for (const auto& [patch, text] : bad) {
    const absl::Status status = CheckPatch(patch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(text), std::string::npos) << status;
  }
  EXPECT_TRUE(CheckPatch({{"name", "deepseek"}, {"mode", "observe"}, {"freeze_steps", ""}}).ok());
}

TEST(SettingsTest, TheLaterPatchWinsAndTheRestStays) {
  const SettingsPatch merged = Merged({{"every_steps", 1}, {"min_gain", 0.5}},
                                      {{"every_steps", 2}, {"layers_per_chunk", 3}});
  EXPECT_EQ(merged,
            (SettingsPatch{{"every_steps", 2}, {"min_gain", 0.5}, {"layers_per_chunk", 3}}));
  const Settings settings = Patched({}, merged);
  EXPECT_EQ(settings.every_steps, 2);
  EXPECT_EQ(settings.layers_per_chunk, 3);
  EXPECT_EQ(settings.horizon_steps, Settings().horizon_steps);
  EXPECT_EQ(SettingsText(settings, {{"min_gain", 0.1}}), "min_gain=0.5");
}

TEST(SettingsTest, EveryRowReadsWhatItGives) {
  for (const SettingRow& row : SettingRows()) {
    const Scalar value = row.get(Settings());
    EXPECT_TRUE(row.Holds(value)) << row.name;
    EXPECT_EQ(row.Read({.text = ScalarText(value)}), value) << row.name;
    Settings settings;
    row.set(value, &settings);
    EXPECT_EQ(settings, Settings()) << row.name;
    EXPECT_EQ(FindSetting(row.FullName()), &row);
    EXPECT_EQ(FindSetting(row.name), &row);
  }
  EXPECT_EQ(FindSetting("policy.max_pause"), nullptr) << "it stands in another table";
}

TEST(SettingsTest, APatchOfAllIsAllOfThem) {
  Settings settings;
  settings.observe = true;
  settings.freeze_steps = {3, 9};
  settings.max_pause = absl::Milliseconds(7);
  settings.hierarchy = Hierarchy::kSoft;
  settings.gpu_speeds = SpeedMode::kApply;
  settings.stated_speeds = {{3, 0.5}};
  settings.avoid_gpus = {1, 7};
  EXPECT_EQ(Patched({}, PatchOf(settings)), settings);
  EXPECT_EQ(SettingsText(settings, {}), PatchText(PatchOf(settings)));
  EXPECT_EQ(PatchText({{"freeze_steps", ""}}), "freeze_steps=never");
  EXPECT_EQ(PatchText({{"stated_speeds", ""}, {"avoid_gpus", "1"}}),
            "stated_speeds=none avoid_gpus=1");
}

}  // namespace
}  // namespace eplb::wire
