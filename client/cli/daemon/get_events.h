// `eplbctl get events`.
#ifndef EPLB_CLIENT_CLI_DAEMON_GET_EVENTS_H_
#define EPLB_CLIENT_CLI_DAEMON_GET_EVENTS_H_

#include <cstdint>
#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct GetEventsOptions {
  QueryOptions query;
  std::string job;  // empty: the only one
  int32_t limit = 20;
  int64_t after = 0;  // only events with a higher sequence
};

// The audit log of a job, newest first: {"job","events":[..]} as JSON.
Output RunGetEvents(const GetEventsOptions& options, const Terminal& terminal);

void AddGetEvents(CLI::App& get, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_GET_EVENTS_H_
