// `eplbctl get ranks`.
#ifndef EPLB_CLIENT_CLI_DAEMON_GET_RANKS_H_
#define EPLB_CLIENT_CLI_DAEMON_GET_RANKS_H_

#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct GetRanksOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
};

// What each rank runs and answered. JSON: {"job","incarnation","ranks":[..]}.
Output RunGetRanks(const GetRanksOptions& options, const Terminal& terminal);

void AddGetRanks(CLI::App& get, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_GET_RANKS_H_
