// `eplbctl get windows`: the balancedness of a job's load windows, as a table and a chart.
#ifndef EPLB_CLIENT_CLI_GET_WINDOWS_H_
#define EPLB_CLIENT_CLI_GET_WINDOWS_H_

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::cli {

// Windows, oldest first, with a line for steps that no window covers. JSON: {"job","windows":[..]},
// with the keys of /api/v1/jobs/JOB/windows.
Output RunGetWindows(const ListQuery& options, const Terminal& terminal);

void AddGetWindows(const Flags& get);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_GET_WINDOWS_H_
