// The flags that all commands share that change something at the daemon.
#ifndef EPLB_CLIENT_CLI_DAEMON_CHANGE_H_
#define EPLB_CLIENT_CLI_DAEMON_CHANGE_H_

#include <cstdint>
#include <set>
#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"

namespace eplb::cli {

struct ChangeOptions {
  QueryOptions query;
  std::string job;              // empty: the only one
  std::string request_id;       // empty: drawn
  int64_t expect_version = -1;  // < 0: the one in force just before
  std::string comment;
};

// --job, --expect-version, --request-id, --comment and those of a query.
void AddChangeOptions(CLI::App& app, ChangeOptions& options,
                      const std::set<ExitCode>& more_exit_codes = {});

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_CHANGE_H_
