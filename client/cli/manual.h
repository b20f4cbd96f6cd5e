// What eplbctl says of itself: help, completion and manual page, from the tree of its commands.
#ifndef EPLB_CLIENT_CLI_MANUAL_H_
#define EPLB_CLIENT_CLI_MANUAL_H_

#include <string>
#include <vector>

#include "client/cli/flags.h"
#include "client/cli/terminal.h"

namespace CLI {
class App;
}  // namespace CLI

namespace eplb::cli {

// The table of commands as values: what completion scripts and the manual page are made from.

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

// `eplbctl help [TOPIC]`: pages on what the other commands' output means, and their --help.

// The page of a topic, the help of the command that the words name, or that of `root` without
// words. Exit 2, naming the topics, if there is no such page.
Output RunHelp(const CLI::App& root, const std::vector<std::string>& words);

void AddHelp(CLI::App& root, Command& command);

// `eplbctl completion`: scripts by which a shell completes commands, flags and their choices.

std::string BashCompletion(const std::vector<CommandEntry>& commands);
std::string ZshCompletion(const std::vector<CommandEntry>& commands);
std::string FishCompletion(const std::vector<CommandEntry>& commands);

void AddCompletion(CLI::App& root, Command& command);

// `eplbctl man`: the manual page, from the same table as --help.

// In roff, for section 1. version: "0.1.0".
std::string ManualPage(const std::vector<CommandEntry>& commands, const std::string& version);

// version: of the page's footer.
void AddMan(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_MANUAL_H_
