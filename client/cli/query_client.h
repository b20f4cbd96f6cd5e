// Asks the daemon, once, with a deadline; and which job is meant.
#ifndef EPLB_CLIENT_CLI_QUERY_CLIENT_H_
#define EPLB_CLIENT_CLI_QUERY_CLIENT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/tls_files.h"
#include "client/cli/formats/load_window.h"
#include "client/cli/terminal.h"
#include "proto/wire/messages.h"

namespace eplb::v1 {
class AdminResponse;
class Change;
class ForgetRequest;
class GetJobRequest;
class GetLoadRequest;
class GetLoadResponse;
class GetStatusResponse;
class JobStatus;
class GetPlanRequest;
class ListEventsRequest;
class ListEventsResponse;
class ListWindowsRequest;
class ListWindowsResponse;
class ListPlansRequest;
class ListPlansResponse;
class PauseRequest;
class Plan;
class PreviewRequest;
class RebalanceRequest;
class ResumeRequest;
class RollbackRequest;
class SetPolicyRequest;
}  // namespace eplb::v1

namespace eplb::cli {

// Why no connection came about, in words of the operating system.

// "cannot reach 127.0.0.1:29610: connection refused". message: gRPC's, of which its own words are
// left out where the cause is known. plaintext: the connection had no TLS.
// PermissionDenied for a socket that this user may not open, else Unavailable.
absl::Status ConnectionError(const std::string& endpoint, const std::string& message,
                             bool plaintext);

// Where the daemon is.

struct DaemonAddress {
  std::string
      endpoint;  // as gRPC takes it: "HOST:PORT" or "unix:/path"; several with commas between them
  wire::TlsFiles tls = {};
};

// The first endpoint of: `endpoint`, a flag's; that of `context`, a flag's; EPLB_ENDPOINT; that of
// the context that EPLB_CONTEXT names; that of the context in force in the configuration file
// (context.h); `endpoint` there; a socket that is there, /run/eplb/eplbd.sock or
// $XDG_RUNTIME_DIR/eplb/eplbd.sock; 127.0.0.1:29610. Each TLS file is the first of: `tls`, a
// flag's; the environment; `tls.ca`, `tls.cert`, `tls.key` and `tls.server_name` of the
// configuration file. These last belong to the file's own endpoint: with an endpoint from a flag or
// the environment they are used only when the file has none. Those of a context named by a flag are
// above the environment. errors: InvalidArgument, naming the source: no HOST:PORT, unix:PATH or
// /PATH; a configuration file that is no TOML or has another key. NotFound: no such context.
absl::StatusOr<DaemonAddress> ResolveDaemon(const std::string& endpoint, const wire::TlsFiles& tls,
                                            const std::string& context = "");

// The daemon has jobs, but shows this asker none of them.
inline constexpr char kNoVisibleJob[] =
    "no job that you may see: tls.identity of the daemon decides which";

struct QueryOptions {
  std::string endpoint;        // as the flag; empty: of the environment or the configuration file
  std::string context = {};    // as the flag; empty: of the environment or the configuration file
  wire::TlsFiles tls = {};     // as the flags; the environment fills in what is empty
  std::string timeout = "5s";  // "5s", "500ms" or a number of seconds
  Format format = Format::kTable;
};

// Of several endpoints the daemon that leads answers: those that stand by name it.
// errors, of one line: InvalidArgument for an endpoint, timeout or TLS file that cannot be read;
// Unavailable when no connection came about ("cannot reach 127.0.0.1:29610: .."); DeadlineExceeded
// when a connected daemon did not answer; what the daemon answers, NotFound among it, its own
// UNAVAILABLE as Unknown.
absl::Status AskStatus(const QueryOptions& options, v1::GetStatusResponse* response);
// What each endpoint of the list answers, asked by itself.
struct EndpointAnswer {
  std::string endpoint;
  absl::Status status;                          // a standby's refusal is one, too
  std::optional<std::string> standby_for = {};  // it stands by for this daemon, empty: for none
  std::string trouble = {};  // what is wrong with a standby, one sentence; empty: nothing
};
absl::StatusOr<std::vector<EndpointAnswer>> AskEndpoints(const QueryOptions& options);
absl::Status Ask(const QueryOptions& options, const v1::GetJobRequest& request,
                 v1::JobStatus* response);
absl::Status Ask(const QueryOptions& options, const v1::ListPlansRequest& request,
                 v1::ListPlansResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::GetPlanRequest& request,
                 v1::Plan* response);
absl::Status Ask(const QueryOptions& options, const v1::ListEventsRequest& request,
                 v1::ListEventsResponse* response);
absl::Status Ask(const QueryOptions& options, const v1::ListWindowsRequest& request,
                 v1::ListWindowsResponse* response);
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
absl::Status Ask(const QueryOptions& options, const v1::PreviewRequest& request,
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

// `job`, or the only one that the daemon has when that is empty. errors: also InvalidArgument,
// listing the jobs, when there are several; NotFound when there is none.
absl::StatusOr<std::string> ChooseJob(const QueryOptions& options, const std::string& job);

// The exit code of such an error, and its line.
Output QueryFailure(const absl::Status& status);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_QUERY_CLIENT_H_
