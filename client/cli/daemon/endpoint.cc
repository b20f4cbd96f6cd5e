#include "client/cli/daemon/endpoint.h"

#include <sys/stat.h>

#include <cstdlib>
#include <string_view>
#include <vector>

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

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::string> Checked(const std::string& source, const std::string& endpoint) {
  absl::StatusOr<std::string> checked = wire::CheckEndpoint(endpoint);
  if (!checked.ok()) return InFile(source, checked.status());
  return checked;
}

// The `endpoint` of the config file; empty when there is no file or no such key.
absl::StatusOr<std::string> FromConfig(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kMaxConfigBytes);
  if (absl::IsNotFound(text.status())) return "";
  if (!text.ok()) return text.status();
  EPLB_ASSIGN_OR_RETURN(const toml::table table, wire::ParseToml(path, *text));
  std::string endpoint;
  for (const auto& [key, value] : table) {
    const auto* text_value = value.as_string();
    if (key.str() != "endpoint" || text_value == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::string(key.str()),
                                                     ": expected only endpoint = \"HOST:PORT\""));
    }
    endpoint = text_value->get();
  }
  return endpoint;
}

std::string ConfigPath() {
  const std::string home = Environment("XDG_CONFIG_HOME");
  if (!home.empty()) return home + "/eplb/eplbctl.toml";
  return Environment("HOME") + "/.config/eplb/eplbctl.toml";
}

bool IsSocket(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

}  // namespace

absl::StatusOr<std::string> ResolveEndpoint(const std::string& flag) {
  if (!flag.empty()) return Checked("--endpoint", flag);
  const std::string variable = Environment("EPLB_ENDPOINT");
  if (!variable.empty()) return Checked("EPLB_ENDPOINT", variable);
  const std::string config = ConfigPath();
  EPLB_ASSIGN_OR_RETURN(const std::string configured, FromConfig(config));
  if (!configured.empty()) return Checked(config, configured);
  std::vector<std::string> sockets = {kServiceSocket};
  const std::string runtime = Environment("XDG_RUNTIME_DIR");
  if (!runtime.empty()) sockets.push_back(runtime + "/eplb/eplbd.sock");
  for (const std::string& socket : sockets) {
    if (IsSocket(socket)) return absl::StrCat("unix:", socket);
  }
  return kDefaultEndpoint;
}

}  // namespace eplb::cli
