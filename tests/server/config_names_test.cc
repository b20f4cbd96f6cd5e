#include "server/config_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eplb {
namespace {

using ::testing::HasSubstr;

TEST(OnOneLineTest, LinesControlsAndEndlessTextsAreMadeShowable) {
  EXPECT_EQ(OnOneLine("policy.name"), "policy.name");
  EXPECT_EQ(OnOneLine("a\nb\t\x1b[31m"), "a\\nb\\t\\033[31m");
  EXPECT_EQ(OnOneLine("\u00fc"), "\u00fc");
  EXPECT_EQ(OnOneLine(std::string(256, 'x')), std::string(256, 'x'));
  EXPECT_EQ(OnOneLine(std::string(257, 'x')), std::string(256, 'x') + "..");
}

TEST(VariableOfTest, PointsAndLowerCaseBecomeAVariable) {
  EXPECT_EQ(VariableOf("policy.every_steps"), "EPLB_POLICY_EVERY_STEPS");
}

TEST(SuggestionTest, TheNearestWithinAThirdOfTheNameIsSuggested) {
  const std::vector<std::string> known = {"policy.name", "policy.mode", "drain.grace", "ab"};
  EXPECT_EQ(Suggestion("policy.nam", known), ", did you mean policy.name?");
  EXPECT_EQ(Suggestion("policy.made", known), ", did you mean policy.mode?");
  EXPECT_EQ(Suggestion("poli.name", known), ", did you mean policy.name?");
  EXPECT_EQ(Suggestion("pol.name", known), "") << "3 letters off are more than a third of 8";
  EXPECT_EQ(Suggestion("ac", known), "") << "one letter is more than a third of 2";
  EXPECT_EQ(Suggestion("", known), "");
  EXPECT_EQ(Suggestion(std::string(1 << 20, 'a'), known), "");
  EXPECT_EQ(Suggestion("policy.name", {}), "");
}

TEST(CheckJobNameTest, ANameIsPlainAndShort) {
  EXPECT_TRUE(CheckJobName("v3.large_2-b").ok());
  EXPECT_TRUE(CheckJobName(std::string(128, 'a')).ok());
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string(129, 'a'), std::string("a/b")}) {
    const absl::Status status = CheckJobName(name);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("jobs.\"" + name + "\": expected a job"));
  }
}

}  // namespace
}  // namespace eplb
