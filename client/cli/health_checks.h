// The checks of `eplbctl doctor`, as functions of the daemon's answers.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "client/cli/query_client.h"
#include "proto/wire/messages.h"

namespace eplb::v1 {
class GetStatusResponse;
class JobStatus;
class ListPlansResponse;
}  // namespace eplb::v1

namespace eplb::cli {

struct Check {
  enum class Result { kOk, kWarning, kFailed };
  std::string scope;  // "eplbd", a job's name, or a folder
  std::string name;   // e.g. "ranks"
  Result result = Result::kOk;
  std::string detail;  // one sentence
};

// The result of a check of a job, with a sentence that is the concatenation of `parts`.
struct Verdict {
  Check::Result result;
  std::string detail;
};
template <class... Parts>
Verdict Passed(const Parts&... parts) {
  return {Check::Result::kOk, absl::StrCat(parts...)};
}
template <class... Parts>
Verdict Warning(const Parts&... parts) {
  return {Check::Result::kWarning, absl::StrCat(parts...)};
}
template <class... Parts>
Verdict Failed(const Parts&... parts) {
  return {Check::Result::kFailed, absl::StrCat(parts...)};
}

// Checks that proposals can be made, and reports the daemon's warnings and the jobs that it refuses
// and does not know: all of them, or only `job` if that is not empty.
std::vector<Check> CheckDaemon(const v1::GetStatusResponse& status, const std::string& job);

// Reports the daemons of a list of endpoints: the one that serves, standbys, and unreachable ones.
// Empty for a single endpoint that is no standby.
std::vector<Check> CheckEndpoints(const std::vector<EndpointAnswer>& answers);

// Checks one job: its state and the age of that, how its run began or ended, ranks, their
// agreement, reports, whether balancing is stalled, gain over one slot per expert, library
// versions, transport (transport_checks.h), pause, recent plans, a run that waits and refused
// ranks. placement: the daemon's current placement, or why it does not report one.
std::vector<Check> CheckJob(const v1::JobStatus& job,
                            const absl::StatusOr<wire::PlacementBody>& placement,
                            const v1::ListPlansResponse& plans);

// Checks the ranks' own logs in `directory` with the validator of the protocol's promises. errors:
// those of ReadRunLogs.
absl::StatusOr<Check> CheckRun(const std::string& directory);

}  // namespace eplb::cli
