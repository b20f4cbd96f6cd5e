// `eplbctl man`: the manual page, from the same table as --help.
#ifndef EPLB_CLIENT_CLI_MAN_H_
#define EPLB_CLIENT_CLI_MAN_H_

#include <string>
#include <vector>

#include "client/cli/command_tree.h"
#include "client/cli/flags.h"

namespace eplb::cli {

// In roff, for section 1. version: "0.1.0".
std::string ManualPage(const std::vector<CommandEntry>& commands, const std::string& version);

// version: of the page's footer.
void AddMan(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_MAN_H_
