#include "server/config/config.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "placement/bandwidth.h"
#include "placement/decision/cost.h"
#include "server/config/config_keys.h"
#include "server/config/config_toml.h"

namespace eplb {
namespace {

constexpr std::string_view kPrefix = "EPLB_";
constexpr char kCommandLine[] = "command line";

absl::Status At(const std::string& source, const absl::Status& status) {
  return InvalidInput(source, ": ", status.message());
}

// Variables of our clients that begin as one of ours.
constexpr std::string_view kOfClients[] = {"EPLB_CONTEXT",        "EPLB_DISABLE", "EPLB_ENDPOINT",
                                           "EPLB_LAUNCH_ID",      "EPLB_LIBRARY", "EPLB_TAKE_OVER",
                                           "EPLB_TLS_SERVER_NAME"};

bool IsOfClients(std::string_view variable) {
  return std::ranges::find(kOfClients, variable) != std::end(kOfClients);
}

// The names, such as EPLB_HTTP, under which Kubernetes tells each container of a namespace about
// its services, here one named eplb-http.
std::vector<std::string> ServicesOf(const Variables& environment) {
  constexpr std::string_view kHost = "_SERVICE_HOST";
  std::vector<std::string> services;
  for (const auto& [variable, value] : environment) {
    if (!variable.starts_with(kPrefix) || !variable.ends_with(kHost)) continue;
    services.push_back(variable.substr(0, variable.size() - kHost.size()));
  }
  return services;
}

// True for what Kubernetes sets for one of these services: _SERVICE_HOST, _SERVICE_PORT,
// _SERVICE_PORT_GRPC, _PORT, _PORT_80_TCP, _PORT_80_TCP_ADDR and so on.
bool IsOfService(std::string_view variable, const std::vector<std::string>& services) {
  return std::ranges::any_of(services, [variable](std::string_view service) {
    if (!variable.starts_with(service)) return false;
    const std::string_view rest = variable.substr(service.size());
    return rest == "_SERVICE_HOST" || rest == "_SERVICE_PORT" || rest == "_PORT" ||
           rest.starts_with("_SERVICE_PORT_") || rest.starts_with("_PORT_");
  });
}

// True when the variable's name begins with that of a table, e.g. EPLB_POLICY_.
bool HasKnownTable(std::string_view variable) {
  const std::span<const ConfigKey> keys = ConfigKeys();
  return std::ranges::any_of(keys, [variable](const ConfigKey& key) {
    return variable.starts_with(VariableOf(absl::StrCat(std::string(key.table()), ".")));
  });
}

absl::Status ApplyVariable(const std::string& variable, const std::string& value,
                           DaemonConfig* config) {
  if (IsOfClients(variable)) return absl::OkStatus();
  for (const ConfigKey& key : ConfigKeys()) {
    if (VariableOf(key.name) != variable) continue;
    const absl::Status status = SetConfigKeyFrom(variable, key.name, {.text = value}, config);
    return status.ok() ? status : At(variable, status);
  }
  if (!HasKnownTable(variable)) return absl::OkStatus();  // UnknownVariables tells
  const size_t end_of_table = variable.find('_', kPrefix.size());
  std::string name = absl::AsciiStrToLower(variable.substr(kPrefix.size()));
  name[end_of_table - kPrefix.size()] = '.';
  return At(Clipped(variable), SetConfigKey(name, {.text = value}, config));
}

std::string ValueOf(const Variables& environment, std::string_view name) {
  for (const auto& [variable, value] : environment) {
    if (variable == name) return value;
  }
  return "";
}

// systemd joins several folders by colons.
std::string FirstFolder(const std::string& folders) { return folders.substr(0, folders.find(':')); }

absl::Status CheckUnixSocket(const DaemonConfig& config) {
  const bool asked = config.unix_socket != kAutoSocket && config.unix_socket != kNoSocket;
  if (!asked || !config.grpc.is_unix()) return absl::OkStatus();
  return InvalidInput("listen.unix = ", config.unix_socket,
                      ": listen.grpc is a Unix socket already, ", config.grpc.Text(),
                      ", expected \"auto\" or \"none\"");
}

absl::Status CheckEtcdTls(const EtcdOptions& etcd) {
  EPLB_ASSIGN_OR_RETURN(const EtcdEndpoints endpoints, ParseEtcdEndpoints(etcd.endpoints));
  const std::pair<const char*, const std::string*> files[] = {
      {"tls_ca", &etcd.tls.ca}, {"tls_cert", &etcd.tls.cert}, {"tls_key", &etcd.tls.key}};
  for (const auto& [name, path] : files) {
    if (path->empty() != endpoints.https) continue;
    return InvalidInput(
        endpoints.https
            ? absl::StrCat("store.etcd.", name, " is not set, and store.etcd.endpoints are https")
            : absl::StrCat("store.etcd.", name, " is set, and store.etcd.endpoints are not https"));
  }
  return absl::OkStatus();
}

bool LeavesTheMachineInClear(const EtcdOptions& etcd) {
  const absl::StatusOr<EtcdEndpoints> endpoints = ParseEtcdEndpoints(etcd.endpoints);
  if (!endpoints.ok() || endpoints->https) return false;
  return !std::ranges::all_of(endpoints->members, [](const std::string& member) {
    return member.starts_with("127.") || member.starts_with("localhost:") ||
           member.starts_with("[::1]:") || member.starts_with("unix:");
  });
}

// Returns true for an address that stands for every address of the host, and so is not its name.
bool NamesNoHost(const Address& address) {
  return address.host.empty() || address.host == "0.0.0.0" || address.host == "::";
}

absl::Status CheckEtcd(const DaemonConfig& config) {
  if (config.store_backend != kEtcdBackend) return absl::OkStatus();
  const std::string prefix = config.etcd.prefix;
  if (config.etcd.endpoints.empty()) {
    return InvalidInput(
        "store.backend = etcd: store.etcd.endpoints is not set, expected the members of etcd");
  }
  if (!config.store_path.empty()) {
    return InvalidInput("store.path = ", config.store_path,
                        ": store.backend is etcd, which has no path");
  }
  if (prefix.front() != '/' || prefix.back() == '/') {
    return InvalidInput("store.etcd.prefix = ", prefix,
                        ": expected a / at its begin and none at its end");
  }
  if (config.grpc.is_unix()) {
    return InvalidInput(
        "listen.grpc = ", config.grpc.Text(),
        ": store.backend is etcd, so ranks of other machines connect; expected ADDR:PORT");
  }
  if (config.advertise.empty() && NamesNoHost(config.grpc)) {
    return InvalidInput("listen.advertise is not set, and listen.grpc = ", config.grpc.Text(),
                        " names no host that ranks could connect to");
  }
  return CheckEtcdTls(config.etcd);
}

// The files of [tls] make sense together only.
absl::Status CheckTls(const TlsOptions& tls) {
  const std::pair<const char*, const std::string*> files[] = {
      {"tls.cert", &tls.cert}, {"tls.key", &tls.key}, {"tls.ca", &tls.ca}};
  const auto is_set = [](const auto& file) { return !file.second->empty(); };
  const auto set = std::ranges::find_if(files, is_set);
  const auto missing = std::ranges::find_if_not(files, is_set);
  if (set != std::end(files) && missing != std::end(files)) {
    return InvalidInput(set->first, " is set and ", missing->first, " is not; TLS needs all three");
  }
  if (set == std::end(files) && !tls.identities.empty()) {
    return InvalidInput("tls.identity has rules, and tls.cert is not set");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<DaemonConfig> LoadConfig(const ConfigSources& sources) {
  DaemonConfig config;
  config.core.costs.bandwidths = BandwidthSource::kAssumed;  // until a key gives one
  if (sources.file_text) {
    EPLB_RETURN_IF_ERROR(ApplyConfigText(sources.file, *sources.file_text, &config));
  } else if (!sources.file.empty()) {
    EPLB_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(sources.file));
    EPLB_RETURN_IF_ERROR(ApplyConfigText(sources.file, text, &config));
  }
  const std::vector<std::string> services = ServicesOf(sources.environment);
  for (const auto& [variable, value] : sources.environment) {
    if (!variable.starts_with(kPrefix) || IsOfService(variable, services)) continue;
    EPLB_RETURN_IF_ERROR(ApplyVariable(variable, value, &config));
  }
  for (const auto& [key, value] : sources.flags) {
    const absl::Status status = SetConfigKeyFrom(kCommandLine, key, {.text = value}, &config);
    if (!status.ok()) return At(kCommandLine, status);
  }
  EPLB_RETURN_IF_ERROR(CheckTls(config.tls));
  EPLB_RETURN_IF_ERROR(CheckUnixSocket(config));
  EPLB_RETURN_IF_ERROR(CheckEtcd(config));
  return config;
}

std::vector<std::string> DoubtfulValues(const DaemonConfig& config) {
  constexpr std::pair<const char*, LinkClass> kLinks[] = {
      {"cost.intra_gbps", LinkClass::kIntraNode}, {"cost.inter_gbps", LinkClass::kInterNode}};
  std::vector<std::string> told;
  for (const auto& [key, link] : kLinks) {
    const auto origin = config.origins.find(key);
    if (origin == config.origins.end()) continue;
    const std::string note = BandwidthNote(origin->second.given, link);
    if (note.empty()) continue;
    told.push_back(
        absl::StrCat(origin->second.source, ": ", key, " = ", origin->second.given, " ", note));
  }
  if (config.store_backend == kEtcdBackend && LeavesTheMachineInClear(config.etcd)) {
    told.push_back(absl::StrCat("store.etcd.endpoints = ", config.etcd.endpoints,
                                ": not https, and other machines are in between; who reaches this "
                                "etcd may change what the ranks run"));
  }
  return told;
}

std::vector<std::string> UnknownVariables(const Variables& environment) {
  std::vector<std::string> known;
  for (const ConfigKey& key : ConfigKeys()) known.push_back(VariableOf(key.name));
  const std::vector<std::string> services = ServicesOf(environment);
  std::vector<std::string> told;
  told.reserve(services.size());
  for (const std::string& service : services) {
    told.push_back(absl::StrCat(Clipped(service), "_SERVICE_HOST, ", Clipped(service),
                                "_PORT and the like are of a Kubernetes service and not read"));
  }
  for (const auto& [variable, value] : environment) {
    if (!variable.starts_with(kPrefix) || IsOfService(variable, services)) continue;
    if (IsOfClients(variable) || HasKnownTable(variable)) continue;
    told.push_back(absl::StrCat(Clipped(variable), ": eplbd has no such variable",
                                Suggestion(variable, known)));
  }
  return told;
}

std::string StoreBackendOf(const DaemonConfig& config) {
  return config.store_path == kMemoryBackend ? kMemoryBackend : config.store_backend;
}

std::string AdvertisedAddress(const DaemonConfig& config) {
  return config.advertise.empty() ? config.grpc.Text() : config.advertise;
}

absl::StatusOr<std::string> DefaultStorePath(const Variables& environment) {
  const std::string state = FirstFolder(ValueOf(environment, "STATE_DIRECTORY"));
  if (!state.empty()) return state + "/eplbd.db";
  const std::string state_home = ValueOf(environment, "XDG_STATE_HOME");
  if (!state_home.empty()) return state_home + "/eplb/eplbd.db";
  const std::string home = ValueOf(environment, "HOME");
  if (!home.empty()) return home + "/.local/state/eplb/eplbd.db";
  return FailedPrecondition(
      "no place for the store: none of STATE_DIRECTORY, XDG_STATE_HOME and HOME is set, give "
      "--store PATH or --store memory");
}

std::vector<std::string> DefaultUnixSockets(const Variables& environment) {
  const std::string service = FirstFolder(ValueOf(environment, "RUNTIME_DIRECTORY"));
  if (!service.empty()) return {service + "/eplbd.sock"};
  std::vector<std::string> sockets = {"/run/eplb/eplbd.sock"};
  const std::string user = ValueOf(environment, "XDG_RUNTIME_DIR");
  if (!user.empty()) sockets.push_back(user + "/eplb/eplbd.sock");
  return sockets;
}

}  // namespace eplb
