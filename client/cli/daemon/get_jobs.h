// `eplbctl get jobs`.
#ifndef EPLB_CLIENT_CLI_DAEMON_GET_JOBS_H_
#define EPLB_CLIENT_CLI_DAEMON_GET_JOBS_H_

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

// JSON: {"jobs":[..]}.
Output RunGetJobs(const QueryOptions& options, const Terminal& terminal);

void AddGetJobs(CLI::App& get, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_GET_JOBS_H_
