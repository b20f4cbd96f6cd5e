// `eplbctl get placement`.
#ifndef EPLB_CLIENT_CLI_DAEMON_GET_PLACEMENT_H_
#define EPLB_CLIENT_CLI_DAEMON_GET_PLACEMENT_H_

#include <cstdint>
#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct GetPlacementOptions {
  QueryOptions query;
  std::string job;       // empty: the only one
  int64_t version = -1;  // the one in force
  std::string out;  // path that the placement is written to, as a file for --previous; may be empty
  int32_t layer = 0;  // that the table shows
};

// As far as the daemon knows. JSON: {"job","version","digest","placement"}.
Output RunGetPlacement(const GetPlacementOptions& options, const Terminal& terminal);

void AddGetPlacement(CLI::App& get, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_GET_PLACEMENT_H_
