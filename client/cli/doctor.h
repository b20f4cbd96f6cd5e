// `eplbctl doctor`: checks a daemon and its jobs, or the logs of a run.
#pragma once

#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::cli {

struct DoctorOptions {
  QueryOptions query;
  std::string job;      // empty: all
  std::string run;      // a folder of ranks' logs, which is checked instead of a daemon
  bool strict = false;  // a warning is exit 8, too
};

// Exit 8 if a check failed. JSON: {"healthy","checks":[{"scope","check","result","detail"}]}.
Output RunDoctor(const DoctorOptions& options, const Terminal& terminal);

void AddDoctor(const Flags& root);

}  // namespace eplb::cli
