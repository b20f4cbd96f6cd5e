#include "client/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What is wrong with the words; empty: nothing.
std::string Problem(CLI::App& app, std::vector<std::string> words) {
  try {
    app.parse(std::move(words));
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(FlagsTest, AJobThatNoDaemonCanKnowIsRefusedWithItsFlag) {
  CLI::App app;
  std::string job;
  AddJobOption(app, job);
  EXPECT_EQ(Problem(app, {"--job=moe-1.B_2"}), "");
  EXPECT_EQ(job, "moe-1.B_2");
  for (const std::string& bad : {std::string("\xff"), std::string("a b"), std::string(9000, 'a')}) {
    const std::string problem = Problem(app, {"--job=" + bad});
    EXPECT_THAT(problem, StartsWith("--job: the name has "));
    EXPECT_LT(problem.size(), 80U);
  }
  EXPECT_THAT(Problem(app, {"--job=" + std::string(129, 'a')}), HasSubstr("expected 1..128"));
}

TEST(FlagsTest, ARequestIdThatNoDaemonTakesIsRefusedWithItsFlag) {
  CLI::App app;
  std::string id;
  AddRequestIdOption(app, id);
  EXPECT_EQ(Problem(app, {"--request-id=r-1"}), "");
  EXPECT_THAT(Problem(app, {"--request-id=\xff"}), StartsWith("--request-id: the name has "));
  EXPECT_THAT(Problem(app, {"--request-id=" + std::string(65, 'a')}), HasSubstr("1..64"));
}

TEST(FlagsTest, ANumberThatIsTooLargeIsCalledSoWithAndWithoutASign) {
  EXPECT_EQ(CheckNotNegative("+7"), "");
  for (const std::string large : {"99999999999999999999", "+99999999999999999999"}) {
    EXPECT_EQ(CheckNotNegative(large), "\"" + large + "\" is too large");
  }
  EXPECT_EQ(CheckNotNegative("-1"), "\"-1\" is no integer >= 0");
  EXPECT_EQ(CheckNotNegative("+-1"), "\"+-1\" is no integer >= 0");
}

TEST(FlagsTest, HelpEndsWithTheExitCodesOfTheCommand) {
  CLI::App app;
  QueryOptions options;
  AddQueryOptions(app, options);
  EXPECT_EQ(app.get_footer(),
            "Exit codes: 0 ok, 1 error, 2 wrong flag or unusable input, 3 unreachable,\n"
            "  4 denied, 7 timeout.");
  CLI::App other;
  AddQueryOptions(other, options, {kConditionNotMet, kNotFound});
  EXPECT_THAT(other.get_footer(), HasSubstr("5 not found, 7 timeout, 8 condition not met."));
}

}  // namespace
}  // namespace eplb::cli
