// Named daemons: the configuration file of eplbctl, and `eplbctl context`.
#ifndef EPLB_CLIENT_CLI_CONTEXT_H_
#define EPLB_CLIENT_CLI_CONTEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct Context {
  std::string name;
  DaemonAddress address;  // its endpoint is never empty
};

// What eplbctl.toml has:
//   context = "train"              the context in force without --context and EPLB_CONTEXT
//   endpoint = "127.0.0.1:29610"   where no context is in force
//   [tls]                          ca, cert, key, server_name
//   [contexts.train]
//   endpoint = "head:29610"
//   tls.ca = "ca.pem"
struct CtlConfig {
  std::string path;
  std::string in_force;           // name of a context, or empty
  std::vector<Context> contexts;  // by name
  DaemonAddress address;          // without a context; its endpoint may be empty
};

// $XDG_CONFIG_HOME/eplb/eplbctl.toml, or ~/.config/eplb/eplbctl.toml without XDG_CONFIG_HOME.
std::string CtlConfigPath();

// A file that is not there gives an empty CtlConfig. Paths of the file begin at its folder.
// errors: InvalidArgument naming the path and the key: no TOML, another key, a context without an
// endpoint, `context` naming none of them.
absl::StatusOr<CtlConfig> ReadCtlConfig(const std::string& path);

// errors: NotFound, listing the contexts.
absl::StatusOr<Context> FindContext(const CtlConfig& config, const std::string& name);

// The text of a configuration file with `context = "NAME"` in force; every other line stays as it
// is. An empty name removes the line.
std::string WithContextInForce(std::string_view text, const std::string& name);

// `eplbctl context list`. JSON: {"context","contexts":[{"name","endpoint","tls","in_force"}]}.
Output RunContextList(Format format);
// `eplbctl context use NAME`: writes the file. `name` empty: no context is in force afterwards.
// dry_run: says what it would write.
Output RunContextUse(const std::string& name, bool dry_run);

void AddContext(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_CONTEXT_H_
