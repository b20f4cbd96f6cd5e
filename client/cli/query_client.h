// Asks the daemon, once, with a deadline.
#ifndef EPLB_CLIENT_CLI_QUERY_CLIENT_H_
#define EPLB_CLIENT_CLI_QUERY_CLIENT_H_

#include <string>

#include "absl/status/status.h"

#include "client/cli/output.h"
#include "proto/wire/tls_files.h"

namespace eplb::v1 {
class GetStatusResponse;
class GetPlacementResponse;
}  // namespace eplb::v1

namespace eplb::cli {

struct QueryOptions {
  std::string endpoint;        // as the flag; empty: see endpoint.h
  wire::TlsFiles tls;          // as the flags; the environment fills in what is empty
  std::string timeout = "5s";  // "5s", "500ms" or a number of seconds
  Format format = Format::kTable;
};

// errors, of one line: InvalidArgument for an endpoint, timeout or TLS file that cannot be read;
// Unavailable when no connection came about ("cannot reach 127.0.0.1:29610: .."); DeadlineExceeded
// when a connected daemon did not answer; what the daemon answers, NotFound among it.
absl::Status AskStatus(const QueryOptions& options, v1::GetStatusResponse* response);
absl::Status AskPlacement(const QueryOptions& options, const std::string& job,
                          v1::GetPlacementResponse* response);

// The exit code of such an error, and its line.
Output QueryFailure(const absl::Status& status);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_QUERY_CLIENT_H_
