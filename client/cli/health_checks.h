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

inline constexpr char kDaemonScope[] = "eplbd";

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
// versions, transport, pause, recent plans, a run that waits and refused
// ranks. placement: the daemon's current placement, or why it does not report one.
std::vector<Check> CheckJob(const v1::JobStatus& job,
                            const absl::StatusOr<wire::PlacementBody>& placement,
                            const v1::ListPlansResponse& plans);

// Checks the ranks' own logs in `directory` with the validator of the protocol's promises, and
// whether each ends with a stop. errors: those of ReadRunLogs.
absl::StatusOr<std::vector<Check>> CheckRun(const std::string& directory);

// ---- the transport of expert rows

// NCCL's own variables that change the speed or the path of rows, with their values when unset.
// docs/nccl-settings.md lists them with reasons and the source of each value.

inline constexpr char kNotSet[] = "not set";

struct NcclVariable {
  const char* name;
  const char* value_when_unset;  // kNotSet: the variable then changes nothing
};

// In the order of names, as ranks report those that are set.
inline constexpr NcclVariable kNcclVariables[] = {
    {"NCCL_BUFFSIZE", "4194304"},
    {"NCCL_CROSS_NIC", "2"},
    {"NCCL_IB_MERGE_NICS", "1"},
    {"NCCL_IB_QPS_PER_CONNECTION", "1"},
    {"NCCL_IB_SL", kNotSet},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", "0"},
    {"NCCL_IB_TC", kNotSet},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "0"},
    {"NCCL_MAX_CTAS", kNotSet},
    {"NCCL_MAX_NCHANNELS", kNotSet},
    {"NCCL_MAX_P2P_NCHANNELS", "64"},
    {"NCCL_MIN_CTAS", kNotSet},
    {"NCCL_MIN_NCHANNELS", kNotSet},
    {"NCCL_MIN_P2P_NCHANNELS", "1"},
    {"NCCL_NCHANNELS_PER_NET_PEER", kNotSet},
    {"NCCL_NET", "by what is there"},
    {"NCCL_NET_GDR_LEVEL", "by topology"},
    {"NCCL_P2P_DISABLE", "0"},
    {"NCCL_P2P_NET_CHUNKSIZE", "131072"},
    {"NCCL_P2P_NVL_CHUNKSIZE", "524288"},
    {"NCCL_P2P_PCI_CHUNKSIZE", "131072"},
    {"NCCL_PXN_DISABLE", "0"},
    {"NCCL_RUNTIME_CONNECT", "1"},
};

// "transport": all ranks use the same one, and rows in GPU memory do not pass through host memory.
// "nccl", if NCCL carries rows: ranks agree on library and settings. All settings are shown, unset
// ones with NCCL's default. A setting that could be faster is a note, not a finding.
std::vector<Check> CheckTransport(const v1::JobStatus& job);

}  // namespace eplb::cli
