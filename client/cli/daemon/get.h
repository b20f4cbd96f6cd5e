// `eplbctl get`: one thing of the daemon. Each thing has a file of its own, get_*.
#ifndef EPLB_CLIENT_CLI_DAEMON_GET_H_
#define EPLB_CLIENT_CLI_DAEMON_GET_H_

#include "client/cli/flags.h"

namespace eplb::cli {

void AddGet(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_GET_H_
