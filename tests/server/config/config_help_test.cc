#include "server/config/config_help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "server/config/config_keys.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ConfigHelpTest, EveryKeyIsThereWithVariableExpectationAndDefault) {
  const std::string help = ConfigHelp();
  EXPECT_THAT(help, HasSubstr("\npolicy.min_gain  EPLB_POLICY_MIN_GAIN\n    Least fall "));
  EXPECT_THAT(help, HasSubstr("\n    a number in 0..1; default 0.01\n"));
  EXPECT_THAT(
      help, HasSubstr("\n    one of balanced, deepseek, incremental, auto, flow; default auto\n"));
  EXPECT_THAT(help, HasSubstr("; default 127.0.0.1:29610\n"));
  EXPECT_THAT(help, HasSubstr("default 450 GB/s\n"));
  EXPECT_THAT(help, HasSubstr("the path of a PEM file; default none\n"));
  EXPECT_THAT(help, HasSubstr("\nThe keys name, mode, every_steps, min_gain, "));
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_THAT(help, HasSubstr(absl::StrCat("\n", key.FullName(), "  EPLB_")));
  }
}

TEST(ConfigHelpTest, ALineHas80ColumnsAtMost) {
  const std::vector<std::string> lines = absl::StrSplit(ConfigHelp(), '\n');
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 80U) << line;
  }
}

// A sentence each, of at most 25 words.
TEST(ConfigHelpTest, EveryKeySaysWhatItDoes) {
  for (const ConfigKey& key : ConfigKeys()) {
    const std::string help(key.help);
    EXPECT_GT(help.size(), 20U) << key.name;
    for (const std::string& sentence : std::vector<std::string>(absl::StrSplit(help, ". "))) {
      const std::vector<std::string> words = absl::StrSplit(sentence, ' ');
      EXPECT_LE(words.size(), 25U) << key.name << ": " << sentence;
    }
    EXPECT_THAT(ManualPage("v", {}), HasSubstr(key.FullName()));
  }
}

TEST(ConfigHelpTest, EveryDefaultIsAValueThatItsKeyTakes) {
  for (const ConfigKey& key : ConfigKeys()) {
    const Scalar value = key.Get(DaemonConfig());
    if (value == Scalar("")) continue;
    EXPECT_EQ(key.Read({.text = ScalarText(value)}), value) << key.name;
  }
}

TEST(ManualPageTest, FlagsAndKeysAreEntriesAndNoLineBeginsAsACommand) {
  const std::string page = ManualPage("eplbd 1.2", {{"--config", "TOML file"}});
  EXPECT_THAT(page, StartsWith(".TH EPLBD 8"));
  EXPECT_THAT(page, HasSubstr(".TP\n.B \\-\\-config\nTOML file\n"));
  EXPECT_THAT(page, HasSubstr(".TP\n.B policy.min_gain EPLB_POLICY_MIN_GAIN\n"));
  const std::vector<std::string> lines = absl::StrSplit(page, '\n');
  for (const std::string& line : lines) {
    if (!line.starts_with(".")) continue;
    const bool macro = line.starts_with(".TP") || line.starts_with(".B ") || line == ".B eplbd" ||
                       line.starts_with(".SH ") || line.starts_with(".TH ") ||
                       line.starts_with(".RI ") || line == ".PP" || line == ".br";
    EXPECT_TRUE(macro) << line;
  }
}

}  // namespace
}  // namespace eplb
