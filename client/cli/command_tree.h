// The table of commands as values: what completion scripts and the manual page are made from.
#ifndef EPLB_CLIENT_CLI_COMMAND_TREE_H_
#define EPLB_CLIENT_CLI_COMMAND_TREE_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace eplb::cli {

struct FlagEntry {
  std::vector<std::string> names;    // "-o", "--output"; empty for a word by its place
  std::string place;                 // "FROM", of a word by its place
  std::string type;                  // "FILE"; empty for a flag without value
  std::vector<std::string> choices;  // of "a|b|c" types; else empty
  std::string help;
  bool required = false;
};

struct CommandEntry {
  std::string name;  // "get placement"; empty for the program itself
  std::string help;
  std::string footer;  // examples and exit codes
  std::vector<FlagEntry> flags;
  std::vector<std::string> subcommands;  // their last words
};

// The program first, then its commands in the table's order, each before its own subcommands.
std::vector<CommandEntry> ListCommands(const CLI::App& root);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_COMMAND_TREE_H_
