// `eplbctl pause`.
#ifndef EPLB_CLIENT_CLI_DAEMON_PAUSE_H_
#define EPLB_CLIENT_CLI_DAEMON_PAUSE_H_

#include "client/cli/daemon/change.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

struct PauseOptions {
  ChangeOptions change;
};

// No more proposals until `resume`.
Output RunPause(const PauseOptions& options);

void AddPause(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_PAUSE_H_
