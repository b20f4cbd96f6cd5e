#include "proto/wire/gpu_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

#include "proto/wire/settings.h"

namespace eplb::wire {
namespace {

using ::testing::HasSubstr;

TEST(GpuSettingsTest, AListIsReadBackFromItsText) {
  const std::vector<StatedSpeed> speeds = {{3, 0.5}, {7, 1.25}};
  EXPECT_EQ(*ParseSpeeds("3:0.5,7:1.25"), speeds);
  EXPECT_EQ(*ParseSpeeds("3:50%,7:125%"), speeds);
  EXPECT_EQ(SpeedsText(speeds), "3:0.5,7:1.25");
  EXPECT_EQ(*ParseGpus("0,12"), (std::vector<int32_t>{0, 12}));
  EXPECT_EQ(GpusText({0, 12}), "0,12");
  for (const char* none : {"", "none"}) {
    EXPECT_TRUE(ParseSpeeds(none)->empty());
    EXPECT_TRUE(ParseGpus(none)->empty());
  }
  EXPECT_EQ(SpeedsText({}), "");
  EXPECT_EQ(GpusText({}), "");
}

TEST(GpuSettingsTest, WhatIsNoListIsRefused) {
  for (const char* text : {"3", "3:", ":1", "3:0.5,", "7:1,3:1", "3:1,3:1", "-1:1", "3:0.04",
                           "3:21", "3:nan", "3:1:1", "1048576:1", " 3:1"}) {
    EXPECT_FALSE(ParseSpeeds(text).ok()) << text;
  }
  for (const char* text : {"3,", ",3", "7,3", "3,3", "-1", "3.5", "a", "1048576", "3:1"}) {
    EXPECT_FALSE(ParseGpus(text).ok()) << text;
  }
  std::string many = "0";
  for (size_t gpu = 1; gpu <= kMaxNamedGpus; ++gpu) absl::StrAppend(&many, ",", gpu);
  EXPECT_FALSE(ParseGpus(many).ok()) << "more GPUs than a setting names";
  EXPECT_THAT(std::string(ParseGpus(std::string(9000, '1')).status().message()),
              HasSubstr("...\": expected \"GPU,..\" with rising GPUs, or \"none\""));
  EXPECT_THAT(std::string(ParseSpeeds("x").status().message()),
              HasSubstr("speeds in 0.05..20, or \"none\""));
}

TEST(GpuSettingsTest, ARangeReadsTextsOnly) {
  const SettingRow& speeds = *FindSetting("stated_speeds");
  const SettingRow& gpus = *FindSetting("avoid_gpus");
  EXPECT_EQ(speeds.Read({.text = "3:0.50"}), Scalar(std::string("3:0.5")));
  EXPECT_EQ(gpus.Read({.text = "none"}), Scalar(std::string()));
  EXPECT_EQ(gpus.Read({.kind = WrittenValue::Kind::kInteger, .text = "3"}), std::nullopt);
  EXPECT_FALSE(speeds.Holds(Scalar(int64_t{3})));
  EXPECT_FALSE(gpus.Holds(Scalar(std::string("3,x"))));
}

}  // namespace
}  // namespace eplb::wire
