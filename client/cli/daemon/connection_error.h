// Why no connection came about, in words of the operating system.
#ifndef EPLB_CLIENT_CLI_DAEMON_CONNECTION_ERROR_H_
#define EPLB_CLIENT_CLI_DAEMON_CONNECTION_ERROR_H_

#include <string>

#include "absl/status/status.h"

namespace eplb::cli {

// "cannot reach 127.0.0.1:29610: connection refused". message: gRPC's, of which its own words are
// left out where the cause is known. plaintext: the connection had no TLS.
// PermissionDenied for a socket that this user may not open, else Unavailable.
absl::Status ConnectionError(const std::string& endpoint, const std::string& message,
                             bool plaintext);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_CONNECTION_ERROR_H_
