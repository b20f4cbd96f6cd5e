#include "client/cli/daemon_address.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "client/cli/context.h"
#include "proto/wire/endpoint.h"

namespace eplb::cli {
namespace {

constexpr char kDefaultEndpoint[] = "127.0.0.1:29610";
constexpr char kServiceSocket[] = "/run/eplb/eplbd.sock";

std::string EnvironmentText(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> Checked(const std::string& source, const std::string& endpoint) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<std::string> checked,
                        InFile(source, wire::SplitEndpoints(endpoint)));
  return absl::StrJoin(checked, ",");
}

wire::TlsFiles FilledFrom(const wire::TlsFiles& more, wire::TlsFiles files) {
  if (files.ca.empty()) files.ca = more.ca;
  if (files.cert.empty()) files.cert = more.cert;
  if (files.key.empty()) files.key = more.key;
  if (files.server_name.empty()) files.server_name = more.server_name;
  return files;
}

// True for a socket that a daemon serves; a killed daemon leaves its socket. A socket that this
// user may not open counts as served, so that the error names it.
bool IsServed(const std::string& path) {
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) return false;
  path.copy(address.sun_path, path.size());
  const int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (probe < 0) return false;
  const bool reached =
      connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const bool served = reached || errno == EAGAIN || errno == EACCES;
  (void)close(probe);
  return served;
}

absl::StatusOr<std::string> WithoutConfig() {
  std::vector<std::string> sockets = {kServiceSocket};
  const std::string runtime = EnvironmentText("XDG_RUNTIME_DIR");
  if (!runtime.empty()) sockets.push_back(runtime + "/eplb/eplbd.sock");
  for (const std::string& socket : sockets) {
    if (IsServed(socket)) return absl::StrCat("unix:", socket);
  }
  return kDefaultEndpoint;
}

// Returns the address in the configuration file: that of the context that the flag, EPLB_CONTEXT or
// the file names, or the file's own without one. given: a flag or EPLB_ENDPOINT names the daemon,
// so that no context is needed.
absl::StatusOr<DaemonAddress> AddressInForce(const std::string& path, const std::string& context,
                                             bool given) {
  EPLB_ASSIGN_OR_RETURN(const CtlConfig config, ReadCtlConfig(path));
  std::string name = context.empty() ? EnvironmentText("EPLB_CONTEXT") : context;
  if (name.empty()) name = config.in_force;
  if (name.empty() || given) return config.address;
  EPLB_ASSIGN_OR_RETURN(Context found, FindContext(config, name));
  return std::move(found.address);
}

}  // namespace

absl::StatusOr<DaemonAddress> ResolveDaemon(const std::string& endpoint, const wire::TlsFiles& tls,
                                            const std::string& context) {
  const std::string path = CtlConfigPath();
  const std::string variable = EnvironmentText("EPLB_ENDPOINT");
  const bool given = !endpoint.empty() || (!variable.empty() && context.empty());
  absl::StatusOr<DaemonAddress> config = AddressInForce(path, context, given);
  // A broken file is no obstacle if a flag or EPLB_ENDPOINT names the daemon.
  if (!config.ok() && given) config = DaemonAddress();
  EPLB_RETURN_IF_ERROR(config.status());
  DaemonAddress address = {.tls = wire::WithEnvironment(tls)};
  // A context that was named brings its own identity; flags alone are above it.
  if (!context.empty() && !given) {
    address.tls = FilledFrom(address.tls, FilledFrom(config->tls, tls));
  } else if (!given || config->endpoint.empty()) {
    address.tls = FilledFrom(config->tls, address.tls);
  }
  if (!endpoint.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked("--endpoint", endpoint));
  } else if (given) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked("EPLB_ENDPOINT", variable));
  } else if (!config->endpoint.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked(path, config->endpoint));
  } else {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, WithoutConfig());
    // The sockets that a daemon opens by itself have no TLS, because the kernel names the peer.
    if (absl::StartsWith(address.endpoint, "unix:")) {
      if (!(tls.ca + tls.cert + tls.key + tls.server_name).empty()) {
        return InvalidInput(
            "--tls-ca, --tls-cert, --tls-key and --tls-server-name need --endpoint: "
            "without one the daemon is at ",
            address.endpoint, ", which has no TLS");
      }
      address.tls = {};
    }
  }
  return address;
}

}  // namespace eplb::cli
