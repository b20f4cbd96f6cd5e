#include "client/cli/command_tree.h"

#include <gtest/gtest.h>

namespace eplb::cli {
namespace {

Output Nothing(const Terminal& /*terminal*/) { return {}; }

using Words = std::vector<std::pair<std::string, std::string>>;

TEST(CommandTreeTest, AfterSomeWordsComeCommandsThenFlagsAndTheirChoices) {
  CommandTree tree("tool", "Does things.");
  std::string mode;
  std::string in;
  bool loud = false;
  const Flags get = tree.root().AddGroup("get", "One thing");
  Flags file = get.AddCommand("file", "A file", &Nothing);
  file.Text("-m,--mode", "fast|slow", mode, "How");
  file.Text("in", "IN", in, "Source").Required();
  file.Switch("--loud", loud, "With noise");
  EXPECT_EQ(tree.Commands(), std::vector<std::string>{"get file"});
  EXPECT_EQ(tree.After({}).words.front(), Words::value_type("get", "One thing"));
  EXPECT_EQ(tree.After({"get"}).words.front(), Words::value_type("file", "A file"));
  for (const char* flag : {"-m", "--mode"}) {
    EXPECT_EQ(tree.After({"get", "file", flag}).words, (Words{{"fast", ""}, {"slow", ""}}));
  }
  const CommandTree::Next next = tree.After({"get", "--mode", "fast", "file", "--loud"});
  EXPECT_EQ(next.type, "IN");
  EXPECT_EQ(next.words.back(), Words::value_type("--loud", "With noise"));
}

TEST(CommandTreeTest, EachOfSeveralValuesFollowsItsFlag) {
  CommandTree tree("tool", "Does things.");
  std::vector<std::string> files;
  Flags get = tree.root().AddCommand("get", "Things", &Nothing);
  get.Texts("--file", "FILE", files, "Sources");
  EXPECT_EQ(tree.ProblemWith({"b", "--file", "a", "--file", "get"}), "");
  EXPECT_EQ(files, (std::vector<std::string>{"a", "b"}));
  EXPECT_NE(tree.ProblemWith({"b", "a", "--file", "get"}), "");
}

TEST(CommandTreeTest, PlaceholdersAreNoChoices) {
  CommandTree tree("tool", "Does things.");
  std::string text;
  tree.root().Text("--where", "HOST:PORT|unix:PATH", text, "Place");
  tree.root().Text("--window", "sum|last|ema:A", text, "Rule");
  EXPECT_EQ(tree.After({"--where"}).words, Words());
  EXPECT_EQ(tree.After({"--window"}).words, Words());
}

}  // namespace
}  // namespace eplb::cli
