// The daemon that a command asks, by flags, environment, configuration file or socket; the named
// daemons of that file, and `eplbctl context`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "base/tls_files.h"
#include "client/cli/command_tree.h"

namespace eplb::cli {

struct DaemonAddress {
  // In gRPC's form, "HOST:PORT" or "unix:/path"; several are separated by commas.
  std::string endpoint;
  wire::TlsFiles tls = {};
};

// Returns the first endpoint of: `endpoint`, a flag; that of `context`, a flag; EPLB_ENDPOINT; that
// of the context that EPLB_CONTEXT names; that of the current context of the configuration file
// (CtlConfig); `endpoint` in that file; an existing socket, /run/eplb/eplbd.sock or
// $XDG_RUNTIME_DIR/eplb/eplbd.sock; 127.0.0.1:29610.
// Returns the first of each TLS file of: `tls`, flags; the environment; `tls.ca`, `tls.cert`,
// `tls.key` and `tls.server_name` of the configuration file. The file's TLS settings belong to the
// file's endpoint: for an endpoint of a flag or of the environment they are used only if the file
// has no endpoint. The TLS settings of a context named by a flag precede the environment.
// errors: InvalidArgument, naming the source: no HOST:PORT, unix:PATH or /PATH; a configuration
// file that is no TOML or has an unknown key. NotFound: no such context.
absl::StatusOr<DaemonAddress> ResolveDaemon(const std::string& endpoint, const wire::TlsFiles& tls,
                                            const std::string& context = "");

struct Context {
  std::string name;
  DaemonAddress address;  // its endpoint is never empty
};

// The content of eplbctl.toml:
//   context = "train"              the current context, unless --context or EPLB_CONTEXT names one
//   endpoint = "127.0.0.1:29610"   used if there is no current context
//   [tls]                          ca, cert, key, server_name
//   [contexts.train]
//   endpoint = "head:29610"
//   tls.ca = "ca.pem"
struct CtlConfig {
  std::string path;
  std::string in_force;           // name of a context, or empty
  std::vector<Context> contexts;  // by name
  DaemonAddress address;          // used without a context; its endpoint may be empty
};

// $XDG_CONFIG_HOME/eplb/eplbctl.toml, or ~/.config/eplb/eplbctl.toml without XDG_CONFIG_HOME.
std::string CtlConfigPath();

// A missing file gives an empty CtlConfig. Relative paths in the file begin at its folder.
// errors: InvalidArgument naming the path and the key: no TOML, another key, a context without an
// endpoint, `context` naming none of them.
absl::StatusOr<CtlConfig> ReadCtlConfig(const std::string& path);

// errors: NotFound, listing the contexts.
absl::StatusOr<Context> FindContext(const CtlConfig& config, const std::string& name);

// Returns the text of a configuration file with the line `context = "NAME"`; every other line stays
// as it is. An empty name removes the line.
std::string WithContextInForce(std::string_view text, const std::string& name);

// `eplbctl context list`. JSON: {"context","contexts":[{"name","endpoint","tls","in_force"}]}.
Output RunContextList(Format format);

struct ContextUseOptions {
  std::string name;
  bool none = false;     // no context is current afterwards
  bool dry_run = false;  // report what would be written, write nothing
};
// `eplbctl context use`: writes the file.
Output RunContextUse(const ContextUseOptions& options);

}  // namespace eplb::cli
