// Asks the daemon, once, with a deadline; and which job is meant.
#ifndef EPLB_CLIENT_CLI_DAEMON_QUERY_CLIENT_H_
#define EPLB_CLIENT_CLI_DAEMON_QUERY_CLIENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/output.h"
#include "client/files/load_window.h"
#include "proto/wire/messages.h"
#include "proto/wire/tls_files.h"

namespace eplb::v1 {
class AdminResponse;
class Change;
class ForgetRequest;
class GetJobRequest;
class GetLoadRequest;
class GetLoadResponse;
class GetStatusResponse;
class JobStatus;
class ListEventsRequest;
class ListEventsResponse;
class ListPlansRequest;
class ListPlansResponse;
class PauseRequest;
class RebalanceRequest;
class ResumeRequest;
class RollbackRequest;
class SetPolicyRequest;
}  // namespace eplb::v1

namespace eplb::cli {

// The daemon knows jobs, but shows this asker none of them.
inline constexpr char kNoVisibleJob[] =
    "no job that you may see: tls.identity of the daemon says which";

struct QueryOptions {
  std::string endpoint;        // as the flag; empty: see endpoint.h
  wire::TlsFiles tls = {};     // as the flags; the environment fills in what is empty
  std::string timeout = "5s";  // "5s", "500ms" or a number of seconds
  Format format = Format::kTable;
};

// errors, of one line: InvalidArgument for an endpoint, timeout or TLS file that cannot be read;
// Unavailable when no connection came about ("cannot reach 127.0.0.1:29610: .."); DeadlineExceeded
// when a connected daemon did not answer; what the daemon answers, NotFound among it, its own
// UNAVAILABLE as Unknown.
absl::Status AskStatus(const QueryOptions& options, v1::GetStatusResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::GetJobRequest& request,
                 v1::JobStatus* response);
absl::Status Ask(const QueryOptions& options, const v1::ListPlansRequest& request,
                 v1::ListPlansResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::ListEventsRequest& request,
                 v1::ListEventsResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::RebalanceRequest& request,
                 v1::AdminResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::PauseRequest& request,
                 v1::AdminResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::ResumeRequest& request,
                 v1::AdminResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::RollbackRequest& request,
                 v1::AdminResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::SetPolicyRequest& request,
                 v1::AdminResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::ForgetRequest& request,
                 v1::AdminResponse* response);

// The placement of a version; of the one in force for version < 0. errors: also Internal for an
// answer that is no placement.
absl::StatusOr<wire::PlacementBody> AskPlacement(const QueryOptions& options,
                                                 const std::string& job, int64_t version = -1);

// The newest complete window, and what its GPUs got.
struct AskedLoad {
  LoadWindow window;
  // [L, G] tokens, under the placements that the steps ran under; none when the daemon does not
  // know all of these.
  std::optional<RealMatrix> gpu_loads;
  std::vector<uint64_t> versions;  // of those placements, rising
};

// errors: also NotFound before the first window, Internal for an answer that is no load.
absl::StatusOr<AskedLoad> AskLoad(const QueryOptions& options, const std::string& job);

// `job`, or the only one that the daemon knows when that is empty. errors: also InvalidArgument,
// listing the jobs, when there are several; NotFound when there is none.
absl::StatusOr<std::string> ChooseJob(const QueryOptions& options, const std::string& job);

// The exit code of such an error, and its line.
Output QueryFailure(const absl::Status& status);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_QUERY_CLIENT_H_
