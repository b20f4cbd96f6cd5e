// `eplbctl rollback`.
#ifndef EPLB_CLIENT_CLI_DAEMON_ROLLBACK_H_
#define EPLB_CLIENT_CLI_DAEMON_ROLLBACK_H_

#include <cstdint>

#include "client/cli/daemon/change.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

struct RollbackOptions {
  ChangeOptions change;
  int64_t to = -1;  // version; < 0: the one before the newest rebalance
};

// Proposes an earlier placement and pauses the job.
Output RunRollback(const RollbackOptions& options);

void AddRollback(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_ROLLBACK_H_
