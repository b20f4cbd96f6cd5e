// `eplbctl help TOPIC`: pages on what the other commands' output means.
#ifndef EPLB_CLIENT_CLI_HELP_H_
#define EPLB_CLIENT_CLI_HELP_H_

#include <string>

#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

// The page of this topic; exit 2, naming the topics, for one that is none.
Output RunHelp(const std::string& topic);

void AddHelp(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_HELP_H_
