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

TEST(FlagsTest, SizesFractionsAndTimesHaveUnits) {
  CLI::App app;
  CostOptions costs;
  AddCostOptions(app, costs);
  std::optional<double> gain;
  AddFraction(app, "--gain", gain, "");
  EXPECT_EQ(Problem(app, {"--expert-bytes=88MB", "--training", "--weight-bytes=84MiB",
                          "--gradient-bytes=1.5 GB", "--token-ns=0.2us", "--gain=5%"}),
            "");
  EXPECT_EQ(costs.expert_bytes, 88'000'000);
  EXPECT_EQ(costs.weight_bytes, 84 << 20);
  EXPECT_EQ(costs.gradient_bytes, 1'500'000'000);
  EXPECT_EQ(costs.token_ns, 200);
  EXPECT_EQ(gain, 0.05);
  EXPECT_EQ(Problem(app, {"--expert-bytes=88XB"}),
            "--expert-bytes: \"88XB\" is not a number of bytes such as 88MB, 84MiB or 88080384");
  EXPECT_EQ(Problem(app, {"--gain=x"}), "--gain: \"x\" is not a number such as 0.05 or 5%");
  EXPECT_THAT(Problem(app, {"--token-ns=1parsec"}), HasSubstr("is not a time such as 176ns"));
  EXPECT_EQ(*ParseDuration("--timeout", "2 min"), absl::Minutes(2));
  EXPECT_EQ(*ParseDuration("--timeout", "5"), absl::Seconds(5));
  EXPECT_FALSE(ParseDuration("--timeout", "2h").ok());
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
