// `eplbctl forget`.
#ifndef EPLB_CLIENT_CLI_DAEMON_FORGET_H_
#define EPLB_CLIENT_CLI_DAEMON_FORGET_H_

#include "client/cli/daemon/change.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

struct ForgetOptions {
  ChangeOptions change;  // its job is not empty: the only job of a daemon is not removed by chance
};

// Removes a job without a connected rank; its audit log stays.
Output RunForget(const ForgetOptions& options);

void AddForget(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_FORGET_H_
