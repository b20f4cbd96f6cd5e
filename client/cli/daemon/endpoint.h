// Where the daemon is.
#ifndef EPLB_CLIENT_CLI_DAEMON_ENDPOINT_H_
#define EPLB_CLIENT_CLI_DAEMON_ENDPOINT_H_

#include <string>

#include "absl/status/statusor.h"

namespace eplb::cli {

// As gRPC takes it: "HOST:PORT" or "unix:/path". The first of: `flag`; EPLB_ENDPOINT; `endpoint` in
// $XDG_CONFIG_HOME/eplb/eplbctl.toml (~/.config without XDG_CONFIG_HOME); a socket that is there,
// /run/eplb/eplbd.sock or $XDG_RUNTIME_DIR/eplb/eplbd.sock; 127.0.0.1:29610.
// errors: InvalidArgument, naming the source: no HOST:PORT, unix:PATH or /PATH; a config file that
// is no TOML or has another key.
absl::StatusOr<std::string> ResolveEndpoint(const std::string& flag);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_ENDPOINT_H_
