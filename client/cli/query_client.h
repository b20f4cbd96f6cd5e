// Asks the daemon one question with a deadline, and finds the job that a command means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "base/tls_files.h"
#include "client/cli/formats/load_window.h"
#include "client/cli/terminal.h"
#include "proto/wire/messages.h"

namespace google::protobuf {
class Message;
}

namespace eplb::cli {

// Returns why no connection came about, in words of the operating system: "cannot reach
// 127.0.0.1:29610: connection refused". message: gRPC's, whose own words are left out if the cause
// is known. plaintext: the connection had no TLS. The code is PermissionDenied for a socket that
// this user may not open, otherwise Unavailable.
absl::Status ConnectionError(const std::string& endpoint, const std::string& message,
                             bool plaintext);

// The message if the daemon has jobs but shows none of them to this caller.
inline constexpr char kNoVisibleJob[] =
    "no job that you may see: tls.identity of the daemon decides which";

struct QueryOptions {
  std::string endpoint;        // the flag's value; empty: from the environment or the file
  std::string context = {};    // the flag's value; empty: from the environment or the file
  wire::TlsFiles tls = {};     // the flags' values; the environment fills in what is empty
  std::string timeout = "5s";  // "5s", "500ms" or a number of seconds
  Format format = Format::kTable;
};

// A question about a job.
struct JobQuery {
  QueryOptions query;
  std::string job;  // empty: the only one
};
// Asks one question of v1.Query or v1.Admin; the request's type names the call. If several
// endpoints are given, the leading daemon answers, to which standby daemons refer.
// errors, of one line: InvalidArgument for an endpoint, timeout or TLS file that cannot be read;
// Unavailable if no connection came about ("cannot reach 127.0.0.1:29610: .."); DeadlineExceeded
// if a connected daemon did not answer; the daemon's own errors, such as NotFound, with Unknown in
// place of its UNAVAILABLE.
absl::Status Ask(const QueryOptions& options, const google::protobuf::Message& request,
                 google::protobuf::Message* response);

// Returns `job`, or the daemon's only job if that is empty. errors: also InvalidArgument, listing
// the jobs, if there are several; NotFound if there is none.
absl::StatusOr<std::string> ChooseJob(const QueryOptions& options, const std::string& job);

// Ask about the job that ChooseJob returns. returns: its name.
template <class Request, class Response>
absl::StatusOr<std::string> AskAboutJob(const QueryOptions& options, const std::string& job,
                                        Request request, Response* response) {
  EPLB_ASSIGN_OR_RETURN(std::string name, ChooseJob(options, job));
  request.set_job(name);
  EPLB_RETURN_IF_ERROR(Ask(options, request, response));
  return name;
}

// The answer of one endpoint of the list, which is asked by itself.
struct EndpointAnswer {
  std::string endpoint;
  absl::Status status;                          // an error also if the daemon is a standby
  std::optional<std::string> standby_for = {};  // the leading daemon; empty: no daemon leads
  std::string trouble = {};  // fault of a standby, one sentence; empty: there is none
};
absl::StatusOr<std::vector<EndpointAnswer>> AskEndpoints(const QueryOptions& options);

// Returns the placement of a version, and the current one for version < 0. errors: also Internal
// for an answer that is no placement.
absl::StatusOr<wire::PlacementBody> AskPlacement(const QueryOptions& options,
                                                 const std::string& job, int64_t version = -1);

// The newest complete window, and the loads of the GPUs in it.
struct AskedLoad {
  LoadWindow window;
  // Tokens [L, G] under the placements that the steps ran under. Absent if the daemon does not have
  // all of these placements.
  std::optional<RealMatrix> gpu_loads;
  std::vector<uint64_t> versions;  // versions of those placements, rising
};

// errors: also NotFound before the first window, Internal for an answer that is no load.
absl::StatusOr<AskedLoad> AskLoad(const QueryOptions& options, const std::string& job);

}  // namespace eplb::cli
