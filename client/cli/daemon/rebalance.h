// `eplbctl rebalance`.
#ifndef EPLB_CLIENT_CLI_DAEMON_REBALANCE_H_
#define EPLB_CLIENT_CLI_DAEMON_REBALANCE_H_

#include <string>

#include "client/cli/daemon/change.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

struct RebalanceOptions {
  ChangeOptions change;
  bool force = false;  // without asking whether it pays
  bool wait = false;   // for the end of the decision
  std::string wait_timeout = "10m";
};

// Decides now instead of at the next policy.every_steps. With `wait` the output is the decision, as
// `get plans` has it, and the exit code 8 unless it was committed.
Output RunRebalance(const RebalanceOptions& options);

void AddRebalance(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_REBALANCE_H_
