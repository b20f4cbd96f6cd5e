// `eplbctl top`: a job on one screen, again and again.
#ifndef EPLB_CLIENT_CLI_DAEMON_TOP_H_
#define EPLB_CLIENT_CLI_DAEMON_TOP_H_

#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct TopOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
};

// State, balancedness, the GPU loads of all layers together beside those of the static layout, and
// the worst layers. JSON: as `explain`.
Output RunTop(const TopOptions& options, const Terminal& terminal);

void AddTop(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_TOP_H_
