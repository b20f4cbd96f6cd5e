// `eplbctl resume`.
#ifndef EPLB_CLIENT_CLI_DAEMON_RESUME_H_
#define EPLB_CLIENT_CLI_DAEMON_RESUME_H_

#include "client/cli/daemon/change.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

struct ResumeOptions {
  ChangeOptions change;
};

// Ends a pause and a QUARANTINE.
Output RunResume(const ResumeOptions& options);

void AddResume(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_RESUME_H_
