// `eplbctl get jobs`.
#ifndef EPLB_CLIENT_CLI_DAEMON_GET_JOBS_H_
#define EPLB_CLIENT_CLI_DAEMON_GET_JOBS_H_

#include <string>

#include "client/cli/daemon/query_client.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct GetJobsOptions {
  QueryOptions query;
  std::string job;     // empty: all
  bool ranks = false;  // JSON: with the ranks of each job, which are megabytes at 10,000 ranks
  bool names = false;  // only the names, one a line
};

// JSON: {"jobs":[..],"jobs_hidden"}. errors: NotFound for a job that the daemon does not know.
Output RunGetJobs(const GetJobsOptions& options, const Terminal& terminal);

void AddGetJobs(CLI::App& get, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_GET_JOBS_H_
