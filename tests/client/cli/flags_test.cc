#include "client/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A program whose own flags are tested.
class FlagsTest : public ::testing::Test {
 protected:
  // Returns the error of the first wrong word; empty if all words are as declared.
  std::string Problem(std::vector<std::string> words) {
    words.insert(words.begin(), "run");
    return tree_.ProblemWith(std::move(words));
  }

  CommandTree tree_{"tool", "Does things."};
  Flags flags_ = tree_.root();
  const Flags run_ = flags_.AddCommand("run", "", [](const Terminal&) { return Output(); });
};

TEST_F(FlagsTest, AJobThatNoDaemonCanKnowIsRefusedWithItsFlag) {
  std::string job;
  AddJobOption(flags_, job);
  EXPECT_EQ(Problem({"--job=moe-1.B_2"}), "");
  EXPECT_EQ(job, "moe-1.B_2");
  for (const std::string& bad : {std::string("\xff"), std::string("a b"), std::string(9000, 'a')}) {
    const std::string problem = Problem({"--job=" + bad});
    EXPECT_THAT(problem, StartsWith("--job: the name has "));
    EXPECT_LT(problem.size(), 80U);
  }
  EXPECT_THAT(Problem({"--job=" + std::string(129, 'a')}), HasSubstr("expected 1..128"));
}

TEST_F(FlagsTest, ARequestIdThatNoDaemonTakesIsRefusedWithItsFlag) {
  std::string id;
  AddRequestIdOption(flags_, id);
  EXPECT_EQ(Problem({"--request-id=r-1"}), "");
  EXPECT_THAT(Problem({"--request-id=\xff"}), StartsWith("--request-id: the name has "));
  EXPECT_THAT(Problem({"--request-id=" + std::string(65, 'a')}), HasSubstr("1..64"));
}

TEST_F(FlagsTest, ANumberThatIsTooLargeIsCalledSoWithAndWithoutASign) {
  EXPECT_EQ(CheckNotNegative("+7"), "");
  for (const std::string large : {"99999999999999999999", "+99999999999999999999"}) {
    EXPECT_EQ(CheckNotNegative(large), "\"" + large + "\" is too large");
  }
  EXPECT_EQ(CheckNotNegative("-1"), "\"-1\" is no integer >= 0");
  EXPECT_EQ(CheckNotNegative("+-1"), "\"+-1\" is no integer >= 0");
}

TEST_F(FlagsTest, SizesFractionsAndTimesHaveUnits) {
  CostOptions costs;
  AddCostOptions(flags_, costs);
  std::optional<double> gain;
  AddFraction(flags_, "--gain", gain, "");
  EXPECT_EQ(Problem({"--expert-bytes=88MB", "--training", "--weight-bytes=84MiB",
                          "--gradient-bytes=1.5 GB", "--token-ns=0.2us", "--gain=5%"}),
            "");
  EXPECT_EQ(costs.expert_bytes, 88'000'000);
  EXPECT_EQ(costs.weight_bytes, 84 << 20);
  EXPECT_EQ(costs.gradient_bytes, 1'500'000'000);
  EXPECT_EQ(costs.token_ns, 200);
  EXPECT_EQ(gain, 0.05);
  EXPECT_EQ(Problem({"--expert-bytes=88XB"}),
            "--expert-bytes: \"88XB\" is not a number of bytes such as 88MB, 84MiB or 88080384");
  EXPECT_EQ(Problem({"--gain=x"}), "--gain: \"x\" is not a number such as 0.05 or 5%");
  EXPECT_THAT(Problem({"--token-ns=1parsec"}), HasSubstr("is not a time such as 176ns"));
  EXPECT_EQ(*ParseDuration("--timeout", "2 min"), absl::Minutes(2));
  EXPECT_EQ(*ParseDuration("--timeout", "5"), absl::Seconds(5));
  EXPECT_FALSE(ParseDuration("--timeout", "2h").ok());
}

TEST_F(FlagsTest, HelpEndsWithTheExitCodesOfTheCommand) {
  QueryOptions options;
  AddQueryOptions(flags_, options);
  EXPECT_EQ(flags_.footer(),
            "Exit codes: 0 ok, 1 error, 2 wrong flag or unusable input, 3 unreachable,\n"
            "  4 denied, 7 timeout.");
  Flags other = run_;
  AddQueryOptions(other, options, {kConditionNotMet, kNotFound});
  EXPECT_THAT(other.footer(), HasSubstr("5 not found, 7 timeout, 8 condition not met."));
}

}  // namespace
}  // namespace eplb::cli
