// `eplbctl get windows`: the balancedness of a job's load windows, as a table and a chart.
#ifndef EPLB_CLIENT_CLI_GET_WINDOWS_H_
#define EPLB_CLIENT_CLI_GET_WINDOWS_H_

#include <cstdint>
#include <string>

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct GetWindowsOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  int32_t limit = 20;
};

// Windows, oldest first, with a line where windows between two of them are missing. JSON:
// {"job","windows":[..]}, with the keys of /api/v1/jobs/JOB/windows.
Output RunGetWindows(const GetWindowsOptions& options, const Terminal& terminal);

void AddGetWindows(CLI::App& get, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_GET_WINDOWS_H_
