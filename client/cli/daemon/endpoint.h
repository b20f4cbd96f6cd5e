// Where the daemon is.
#ifndef EPLB_CLIENT_CLI_DAEMON_ENDPOINT_H_
#define EPLB_CLIENT_CLI_DAEMON_ENDPOINT_H_

#include <string>

#include "absl/status/statusor.h"

#include "proto/wire/tls_files.h"

namespace eplb::cli {

struct DaemonAddress {
  std::string endpoint;  // as gRPC takes it: "HOST:PORT" or "unix:/path"
  wire::TlsFiles tls = {};
};

// The first endpoint of: `endpoint`, a flag's; EPLB_ENDPOINT; `endpoint` in
// $XDG_CONFIG_HOME/eplb/eplbctl.toml (~/.config without XDG_CONFIG_HOME); a socket that is there,
// /run/eplb/eplbd.sock or $XDG_RUNTIME_DIR/eplb/eplbd.sock; 127.0.0.1:29610. Each TLS file is the
// first of: `tls`, a flag's; the environment; `tls.ca`, `tls.cert`, `tls.key` and `tls.server_name`
// of the configuration file. These last belong to the file's own endpoint: with an endpoint from a
// flag or the environment they are used only when the file has none. A relative path in the file
// starts from the file's folder.
// errors: InvalidArgument, naming the source: no HOST:PORT, unix:PATH or /PATH; a configuration
// file that is no TOML or has another key.
absl::StatusOr<DaemonAddress> ResolveDaemon(const std::string& endpoint, const wire::TlsFiles& tls);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_ENDPOINT_H_
