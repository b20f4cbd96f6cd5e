#include "client/cli/daemon/endpoint.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "client/files/read_file.h"
#include "placement/status_macros.h"
#include "proto/wire/endpoint.h"
#include "proto/wire/toml_text.h"

namespace eplb::cli {
namespace {

constexpr char kDefaultEndpoint[] = "127.0.0.1:29610";
constexpr char kServiceSocket[] = "/run/eplb/eplbd.sock";
constexpr int64_t kMaxConfigBytes = 1 << 20;

std::string EnvironmentText(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> Checked(const std::string& source, const std::string& endpoint) {
  absl::StatusOr<std::string> checked = wire::CheckEndpoint(endpoint);
  if (!checked.ok()) return InFile(source, checked.status());
  return checked;
}

constexpr char kExpectedKeys[] =
    "expected endpoint, tls.ca, tls.cert, tls.key or tls.server_name, each a text";

absl::Status ReadTls(const std::string& path, const toml::table& table, wire::TlsFiles& tls) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  for (const auto& [name, value] : table) {
    const std::string key(name.str());
    std::string* const field = key == "ca"            ? &tls.ca
                               : key == "cert"        ? &tls.cert
                               : key == "key"         ? &tls.key
                               : key == "server_name" ? &tls.server_name
                                                      : nullptr;
    const auto* const text = value.as_string();
    if (field == nullptr || text == nullptr || text->get().empty()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tls.", key, ": ", kExpectedKeys));
    }
    *field = text->get();
    if (field != &tls.server_name && !absl::StartsWith(*field, "/")) *field = folder + *field;
  }
  return absl::OkStatus();
}

// What the configuration file says; all is empty when there is no file.
absl::StatusOr<DaemonAddress> FromConfig(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return DaemonAddress();
  if (!text.ok()) return text.status();
  EPLB_ASSIGN_OR_RETURN(const toml::table table, wire::ParseToml(path, *text));
  DaemonAddress address;
  for (const auto& [name, value] : table) {
    const std::string key(name.str());
    if (key == "endpoint" && value.is_string()) {
      address.endpoint = value.as_string()->get();
    } else if (key == "tls" && value.is_table()) {
      EPLB_RETURN_IF_ERROR(ReadTls(path, *value.as_table(), address.tls));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", key, ": ", kExpectedKeys));
    }
  }
  return address;
}

wire::TlsFiles FilledFrom(const wire::TlsFiles& more, wire::TlsFiles files) {
  if (files.ca.empty()) files.ca = more.ca;
  if (files.cert.empty()) files.cert = more.cert;
  if (files.key.empty()) files.key = more.key;
  if (files.server_name.empty()) files.server_name = more.server_name;
  return files;
}

std::string ConfigPath() {
  const std::string home = EnvironmentText("XDG_CONFIG_HOME");
  if (!home.empty()) return home + "/eplb/eplbctl.toml";
  return EnvironmentText("HOME") + "/.config/eplb/eplbctl.toml";
}

// A daemon that was killed leaves its socket behind: one that nobody serves does not count. One
// that this user may not use does, so that the error names it.
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

}  // namespace

absl::StatusOr<DaemonAddress> ResolveDaemon(const std::string& endpoint,
                                            const wire::TlsFiles& tls) {
  const std::string path = ConfigPath();
  const std::string variable = EnvironmentText("EPLB_ENDPOINT");
  const bool given = !endpoint.empty() || !variable.empty();
  absl::StatusOr<DaemonAddress> config = FromConfig(path);
  // Who names a daemon is not held up by a broken file.
  if (!config.ok() && given) config = DaemonAddress();
  EPLB_RETURN_IF_ERROR(config.status());
  DaemonAddress address = {.endpoint = {}, .tls = wire::WithEnvironment(tls)};
  if (!given || config->endpoint.empty()) address.tls = FilledFrom(config->tls, address.tls);
  if (!endpoint.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked("--endpoint", endpoint));
  } else if (!variable.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked("EPLB_ENDPOINT", variable));
  } else if (!config->endpoint.empty()) {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, Checked(path, config->endpoint));
  } else {
    EPLB_ASSIGN_OR_RETURN(address.endpoint, WithoutConfig());
    // The sockets that a daemon opens by itself speak no TLS: the kernel knows the peer.
    if (absl::StartsWith(address.endpoint, "unix:")) address.tls = {};
  }
  return address;
}

}  // namespace eplb::cli
