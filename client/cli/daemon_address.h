// The address of the daemon that a command asks: from flags, environment, configuration file or
// socket.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "base/tls_files.h"

namespace eplb::cli {

struct DaemonAddress {
  // In gRPC's form, "HOST:PORT" or "unix:/path"; several are separated by commas.
  std::string endpoint;
  wire::TlsFiles tls = {};
};

// Returns the first endpoint of: `endpoint`, a flag; that of `context`, a flag; EPLB_ENDPOINT; that
// of the context that EPLB_CONTEXT names; that of the current context of the configuration file
// (context.h); `endpoint` in that file; an existing socket, /run/eplb/eplbd.sock or
// $XDG_RUNTIME_DIR/eplb/eplbd.sock; 127.0.0.1:29610.
// Returns the first of each TLS file of: `tls`, flags; the environment; `tls.ca`, `tls.cert`,
// `tls.key` and `tls.server_name` of the configuration file. The file's TLS settings belong to the
// file's endpoint: for an endpoint of a flag or of the environment they are used only if the file
// has no endpoint. The TLS settings of a context named by a flag precede the environment.
// errors: InvalidArgument, naming the source: no HOST:PORT, unix:PATH or /PATH; a configuration
// file that is no TOML or has an unknown key. NotFound: no such context.
absl::StatusOr<DaemonAddress> ResolveDaemon(const std::string& endpoint, const wire::TlsFiles& tls,
                                            const std::string& context = "");

}  // namespace eplb::cli
