#include "client/cli/manual.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace eplb::cli {

namespace {

TEST(CommandTreeTest, CommandsComeBeforeTheirOwnWithFlagsPlacesAndChoices) {
  CLI::App root("Does things.", "tool");
  std::string mode;
  std::string in;
  bool loud = false;
  CLI::App& get = *root.add_subcommand("get", "One thing");
  CLI::App& file = *get.add_subcommand("file", "A file");
  file.add_option("-m,--mode", mode, "How")->type_name("fast|slow");
  file.add_option("in", in, "Where from")->required()->type_name("IN");
  file.add_flag("--loud", loud, "With noise");
  file.footer("Examples: none");
  const std::vector<CommandEntry> commands = ListCommands(root);
  ASSERT_EQ(commands.size(), 3U);
  EXPECT_EQ(commands[0].name, "");
  EXPECT_EQ(commands[0].subcommands, std::vector<std::string>{"get"});
  EXPECT_EQ(commands[1].name, "get");
  const CommandEntry& entry = commands[2];
  EXPECT_EQ(entry.name, "get file");
  EXPECT_EQ(entry.help, "A file");
  EXPECT_EQ(entry.footer, "Examples: none");
  ASSERT_EQ(entry.flags.size(), 4U);  // --help first
  EXPECT_EQ(entry.flags[1].names, (std::vector<std::string>{"-m", "--mode"}));
  EXPECT_EQ(entry.flags[1].choices, (std::vector<std::string>{"fast", "slow"}));
  EXPECT_EQ(entry.flags[2].place, "IN");
  EXPECT_TRUE(entry.flags[2].required);
  EXPECT_TRUE(entry.flags[3].type.empty());
}

TEST(CommandTreeTest, PlaceholdersAreNoChoices) {
  CLI::App root("Does things.", "tool");
  std::string where;
  root.add_option("--where", where, "Where")->type_name("HOST:PORT|unix:PATH");
  root.add_option("--window", where, "Which")->type_name("sum|last|ema:A");
  const std::vector<CommandEntry> commands = ListCommands(root);
  EXPECT_TRUE(commands[0].flags[1].choices.empty());
  EXPECT_TRUE(commands[0].flags[2].choices.empty());
}

}  // namespace

}  // namespace eplb::cli
