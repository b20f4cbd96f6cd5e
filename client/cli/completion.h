// `eplbctl completion`: scripts by which a shell completes commands, flags and their choices.
#ifndef EPLB_CLIENT_CLI_COMPLETION_H_
#define EPLB_CLIENT_CLI_COMPLETION_H_

#include <string>
#include <vector>

#include "client/cli/command_tree.h"

namespace eplb::cli {

std::string BashCompletion(const std::vector<CommandEntry>& commands);
std::string ZshCompletion(const std::vector<CommandEntry>& commands);
std::string FishCompletion(const std::vector<CommandEntry>& commands);

void AddCompletion(const Flags& root, const CommandTree& tree);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_COMPLETION_H_
