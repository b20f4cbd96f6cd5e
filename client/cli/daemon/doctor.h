// `eplbctl doctor`: is everything well?
#ifndef EPLB_CLIENT_CLI_DAEMON_DOCTOR_H_
#define EPLB_CLIENT_CLI_DAEMON_DOCTOR_H_

#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct DoctorOptions {
  QueryOptions query;
  std::string job;      // empty: all
  std::string run;      // a folder of ranks' logs, which is checked instead of a daemon
  bool strict = false;  // a warning, too, is exit 8
};

// Exit 8 when a check failed. JSON: {"healthy","checks":[{"scope","check","result","detail"}]}.
Output RunDoctor(const DoctorOptions& options, const Terminal& terminal);

void AddDoctor(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_DOCTOR_H_
