#include "server/config/config_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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
