// `eplbctl help` and `eplbctl man`: pages about the commands, from the tree of commands.
#ifndef EPLB_CLIENT_CLI_MANUAL_H_
#define EPLB_CLIENT_CLI_MANUAL_H_

#include <string>
#include <vector>

#include "client/cli/command_tree.h"

namespace eplb::cli {

// Returns the page of a topic, the help of the command that the words name, or that of the program
// without words. Exit 2, naming the topics, if there is no such page.
Output RunHelp(const CommandTree& tree, const std::vector<std::string>& words);

// Returns the manual page in roff, for section 1. version: "0.1.0".
std::string ManualPage(const std::vector<CommandEntry>& commands, const std::string& version);

void AddHelp(const Flags& root, const CommandTree& tree);
void AddMan(const Flags& root, const CommandTree& tree);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_MANUAL_H_
