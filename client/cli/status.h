// `eplbctl status`: the daemon and its jobs.
#ifndef EPLB_CLIENT_CLI_STATUS_H_
#define EPLB_CLIENT_CLI_STATUS_H_

#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::cli {

struct StatusOptions {
  QueryOptions query;
  std::string job;     // empty: all
  bool ranks = false;  // JSON: with the ranks of each job, megabytes for 10,000 ranks
};
Output RunStatus(const StatusOptions& options, const Terminal& terminal);

void AddStatus(const Flags& root);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_STATUS_H_
