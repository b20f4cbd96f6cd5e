// `eplbctl status`: the daemon and its jobs.
#pragma once

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
