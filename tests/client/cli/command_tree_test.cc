#include "client/cli/command_tree.h"

#include <gtest/gtest.h>

namespace eplb::cli {
namespace {

Output Nothing(const Terminal& /*terminal*/) { return {}; }

TEST(CommandTreeTest, CommandsComeBeforeTheirOwnWithFlagsPlacesAndChoices) {
  CommandTree tree("tool", "Does things.");
  std::string mode;
  std::string in;
  bool loud = false;
  const Flags get = tree.root().AddGroup("get", "One thing");
  Flags file = get.AddCommand("file", "A file", &Nothing);
  file.Text("-m,--mode", "fast|slow", mode, "How");
  file.Text("in", "IN", in, "Source").Required();
  file.Switch("--loud", loud, "With noise");
  file.SetFooter("Examples: none");
  const std::vector<CommandEntry> commands = tree.List();
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
  CommandTree tree("tool", "Does things.");
  std::string text;
  tree.root().Text("--where", "HOST:PORT|unix:PATH", text, "Place");
  tree.root().Text("--window", "sum|last|ema:A", text, "Rule");
  const std::vector<CommandEntry> commands = tree.List();
  EXPECT_TRUE(commands[0].flags[1].choices.empty());
  EXPECT_TRUE(commands[0].flags[2].choices.empty());
}

}  // namespace
}  // namespace eplb::cli
