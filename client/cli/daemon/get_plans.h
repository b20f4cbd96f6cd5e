// `eplbctl get plans`.
#ifndef EPLB_CLIENT_CLI_DAEMON_GET_PLANS_H_
#define EPLB_CLIENT_CLI_DAEMON_GET_PLANS_H_

#include <cstdint>
#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct GetPlansOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  int32_t limit = 20;
};

// Decisions, newest first, and what became of them. JSON: {"job","plans":[..]}.
Output RunGetPlans(const GetPlansOptions& options, const Terminal& terminal);

void AddGetPlans(CLI::App& get, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_GET_PLANS_H_
