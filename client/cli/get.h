// `eplbctl get jobs` and `eplbctl get placement`.
#ifndef EPLB_CLIENT_CLI_GET_H_
#define EPLB_CLIENT_CLI_GET_H_

#include <cstdint>
#include <string>

#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

Output RunGetJobs(const QueryOptions& options, const Terminal& terminal);

struct GetPlacementOptions {
  QueryOptions query;
  std::string job;
  std::string out;  // path that the placement is written to, as a file for --previous; may be empty
  int32_t layer = 0;  // that the table shows
};

// The placement in force as far as the daemon knows. JSON: {"job","version","digest","placement"}.
Output RunGetPlacement(const GetPlacementOptions& options, const Terminal& terminal);

void AddGet(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_GET_H_
