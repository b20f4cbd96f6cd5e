// `eplbctl status`: the daemon and its jobs.
#ifndef EPLB_CLIENT_CLI_DAEMON_STATUS_H_
#define EPLB_CLIENT_CLI_DAEMON_STATUS_H_

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct StatusOptions {
  QueryOptions query;
  bool ranks = false;  // JSON: with the ranks of each job, which are megabytes at 10,000 ranks
};

Output RunStatus(const StatusOptions& options, const Terminal& terminal);

void AddStatus(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_STATUS_H_
