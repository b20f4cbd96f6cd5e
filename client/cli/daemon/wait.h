// `eplbctl wait`: until something is true of a job.
#ifndef EPLB_CLIENT_CLI_DAEMON_WAIT_H_
#define EPLB_CLIENT_CLI_DAEMON_WAIT_H_

#include <string>

#include "absl/time/time.h"

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

struct WaitOptions {
  QueryOptions query;     // its timeout is that of all questions together, at most a week
  std::string job;        // empty: the only one
  std::string condition;  // see wait_condition.h
};

// Asks until the condition is true, a daemon that goes away meanwhile as well as a job that has not
// come yet among it. Exit 0 when it is true; 8 when the run has ended without it; 7 after the
// timeout; 3 when no daemon answers the first question.
// JSON: {"job","condition","state","version","step","balancedness","seconds"}.
Output RunWait(const WaitOptions& options);

void AddWait(CLI::App& root, Command& command);

// Between two questions of a command that waits.
inline constexpr absl::Duration kAskAgain = absl::Milliseconds(250);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_WAIT_H_
