// `eplbctl rebalance`.
#ifndef EPLB_CLIENT_CLI_DAEMON_REBALANCE_H_
#define EPLB_CLIENT_CLI_DAEMON_REBALANCE_H_

#include "client/cli/daemon/change.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

struct RebalanceOptions {
  ChangeOptions change;
  bool force = false;  // without asking whether it pays
};

// Decides now instead of at the next policy.every_steps.
Output RunRebalance(const RebalanceOptions& options);

void AddRebalance(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_REBALANCE_H_
