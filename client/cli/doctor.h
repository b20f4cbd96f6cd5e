// `eplbctl doctor`: is everything well?
#ifndef EPLB_CLIENT_CLI_DOCTOR_H_
#define EPLB_CLIENT_CLI_DOCTOR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"
#include "proto/wire/messages.h"

namespace eplb::v1 {
class GetStatusResponse;
class JobStatus;
class ListPlansResponse;
}  // namespace eplb::v1

namespace eplb::cli {

// What `eplbctl doctor` looks at, as a function of the daemon's answers.

struct Check {
  enum class Result { kOk, kWarning, kFailed };
  std::string scope;  // "eplbd", a job's name, or a folder
  std::string name;   // e.g. "ranks"
  Result result = Result::kOk;
  std::string detail;  // one sentence
};

// Can proposals be made? What the daemon warns of; and jobs that it refuses although it does not
// know them: all of them, or only `job` when that is not empty.
std::vector<Check> CheckDaemon(const v1::GetStatusResponse& status, const std::string& job);

// State and its age, how its run began or ended, ranks, their agreement, reports, whether
// balancing is stalled, gain over one slot per expert, library versions, transport
// (transport_checks.h), pause and recent plans of one job; a run that waits and refused ranks where
// there are any. placement: what the daemon says is in force, or why it does not say.
std::vector<Check> CheckJob(const v1::JobStatus& job,
                            const absl::StatusOr<wire::PlacementBody>& placement,
                            const v1::ListPlansResponse& plans);

// The ranks' own logs in `directory`, by the validator of the protocol's promises. errors: those of
// ReadRunLogs.
absl::StatusOr<Check> CheckRun(const std::string& directory);

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

#endif  // EPLB_CLIENT_CLI_DOCTOR_H_
