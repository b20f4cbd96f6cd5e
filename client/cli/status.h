// `eplbctl status`: the daemon and its jobs.
#ifndef EPLB_CLIENT_CLI_STATUS_H_
#define EPLB_CLIENT_CLI_STATUS_H_

#include <string>

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct StatusOptions {
  QueryOptions query;
  std::string job;     // empty: all
  bool ranks = false;  // JSON: with the ranks of each job, which are megabytes at 10,000 ranks
};

Output RunStatus(const StatusOptions& options, const Terminal& terminal);

void AddStatus(CLI::App& root, Command& command);

// `eplbctl top`: a job on one screen, again and again.

struct TopOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
};

// State, balancedness, the GPU loads of all layers together beside those of the static layout, and
// the worst layers. JSON: as `explain`.
Output RunTop(const TopOptions& options, const Terminal& terminal);

void AddTop(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_STATUS_H_
