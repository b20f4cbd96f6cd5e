#include "base/command_line.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace eplb {
namespace {

// A program with flags, an argument and a command; what is wrong with the words, empty: nothing.
class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() {
    app_.add_option("--gpus", gpus_)->check(CLI::Range(1, 8));
    app_.add_option("--slots", slots_);
    app_.add_option("--kind", kind_)->check(CLI::IsMember({"host", "peer"}));
    CLI::App* report = app_.add_subcommand("report");
    report->add_option("directory", directory_)->required()->type_name("DIR");
    report->add_option("--load", kind_)->required();
  }

  std::string Problem(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());  // order that CLI11 takes
    try {
      app_.parse(std::move(words));
    } catch (const CLI::ParseError& error) {
      return ExplainParseError(app_, error);
    }
    return "";
  }

  CLI::App app_;
  int gpus_ = 0;
  int slots_ = 0;
  std::string kind_;
  std::string directory_;
};

TEST_F(CommandLineTest, EachKindOfMistakeHasWordsOfAUser) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--gpus", "2", "report", "d", "--load", "x"}, ""},
      {{"--gpsu", "2"}, "unknown flag --gpsu, did you mean --gpus?"},
      {{"--load", "x", "report", "d"}, "--load stands in front of \"report\", expected behind it"},
      {{"reprot"}, "unexpected argument \"reprot\""},
      {{"d\ne\x7f"}, "unexpected argument \"d e?\""},
      {{"--slots", "x"}, "--slots is \"x\", expected a number"},
      {{"--slots", "1.5"}, "--slots is \"1.5\", expected an integer"},
      {{"--slots", "99999999999"}, "--slots is \"99999999999\", the number is too large"},
      {{"--gpus", "9"}, "--gpus is \"9\", expected 1..8"},
      {{"--gpus", "1", "--gpus", "2"}, "--gpus is given 2 times, expected once"},
      {{"--gpus"}, "--gpus has no value"},
      {{"--kind", "pear"}, "--kind is \"pear\", expected one of host, peer, did you mean peer?"},
      {{"report", "--load", "x"}, "argument DIR is missing"},
      {{"report", "d"}, "--load is required"},
  };
  for (const auto& [words, expected] : cases) EXPECT_EQ(Problem(words), expected);
}

TEST_F(CommandLineTest, AnUnknownCommandIsNamedWithTheNearest) {
  app_.require_subcommand(1);
  EXPECT_EQ(Problem({"reprot"}), "unknown command \"reprot\", did you mean report?");
}

TEST_F(CommandLineTest, AFlagWithAnEmptyValueIsFoundInTheInnermostCommand) {
  EXPECT_EQ(Problem({"report", "d", "--load", ""}), "");
  EXPECT_EQ(FlagWithoutValue(app_), "--load");
  EXPECT_EQ(InnermostCommand(app_).get_name(), "report");
  EXPECT_EQ(Problem({"report", "d", "--load", "x"}), "");
  EXPECT_EQ(FlagWithoutValue(app_), "");
}

}  // namespace
}  // namespace eplb
