#include "server/config/config.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "placement/bandwidth.h"
#include "proto/wire/convert.h"
#include "server/config/config_keys.h"
#include "server/config/config_toml.h"
#include "server/config/config_values.h"

namespace eplb {
namespace {

constexpr std::string_view kPrefix = "EPLB_";
constexpr char kCommandLine[] = "command line";

absl::Status At(const std::string& source, const absl::Status& status) {
  return InvalidInput(source, ": ", status.message());
}

// Variables of our clients that begin as one of ours.
constexpr std::string_view kOfClients[] = {
    "EPLB_CONTEXT",  "EPLB_DISABLE",   "EPLB_ENDPOINT",
    "EPLB_JOB",      "EPLB_LAUNCH_ID", "EPLB_LIBRARY",
    "EPLB_PROFILES", "EPLB_TAKE_OVER", "EPLB_TLS_SERVER_NAME"};

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
    return variable.starts_with(VariableOf(key.table + "."));
  });
}

absl::Status ApplyVariable(const std::string& variable, const std::string& value,
                           DaemonConfig* config) {
  if (IsOfClients(variable)) return absl::OkStatus();
  for (const ConfigKey& key : ConfigKeys()) {
    if (VariableOf(key.FullName()) != variable) continue;
    const absl::Status status = SetConfigKeyFrom(variable, key.FullName(), {.text = value}, config);
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
  const std::string& socket = config.keys.listen().unix();
  const bool asked = socket != kAutoSocket && socket != kNoSocket;
  if (!asked || !config.grpc().is_unix()) return absl::OkStatus();
  return InvalidInput("listen.unix = ", socket, ": listen.grpc is a Unix socket already, ",
                      config.keys.listen().grpc(), ", expected \"auto\" or \"none\"");
}

absl::Status CheckEtcdTls(const v1::Configuration::Store::Etcd& etcd) {
  EPLB_ASSIGN_OR_RETURN(const EtcdEndpoints endpoints, ParseEtcdEndpoints(etcd.endpoints()));
  const std::pair<const char*, const std::string*> files[] = {
      {"tls_ca", &etcd.tls_ca()}, {"tls_cert", &etcd.tls_cert()}, {"tls_key", &etcd.tls_key()}};
  for (const auto& [name, path] : files) {
    if (path->empty() != endpoints.https) continue;
    return InvalidInput(
        endpoints.https
            ? absl::StrCat("store.etcd.", name, " is not set, and store.etcd.endpoints are https")
            : absl::StrCat("store.etcd.", name, " is set, and store.etcd.endpoints are not https"));
  }
  return absl::OkStatus();
}

bool LeavesTheMachineInClear(const std::string& members) {
  const absl::StatusOr<EtcdEndpoints> endpoints = ParseEtcdEndpoints(members);
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
  const v1::Configuration::Store& store = config.keys.store();
  const std::string& listen = config.keys.listen().grpc();
  const std::string& prefix = store.etcd().prefix();
  if (store.backend() != kEtcdBackend) return absl::OkStatus();
  if (store.etcd().endpoints().empty()) {
    return InvalidInput(
        "store.backend = etcd: store.etcd.endpoints is not set, expected the members of etcd");
  }
  if (!store.path().empty()) {
    return InvalidInput("store.path = ", store.path(),
                        ": store.backend is etcd, which has no path");
  }
  if (prefix.front() != '/' || prefix.back() == '/') {
    return InvalidInput("store.etcd.prefix = ", prefix,
                        ": expected a / at its begin and none at its end");
  }
  if (config.grpc().is_unix()) {
    return InvalidInput(
        "listen.grpc = ", listen,
        ": store.backend is etcd, so ranks of other machines connect; expected ADDR:PORT");
  }
  if (!config.keys.listen().has_advertise() && NamesNoHost(config.grpc())) {
    return InvalidInput("listen.advertise is not set, and listen.grpc = ", listen,
                        " names no host that ranks could connect to");
  }
  return CheckEtcdTls(store.etcd());
}

// The files of [tls] make sense together only.
absl::Status CheckTls(const DaemonConfig& config) {
  const TlsOptions tls = config.tls();
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

DaemonConfig::DaemonConfig() {
  wire::ToProto(wire::PatchOf(wire::Settings()), keys.mutable_policy());
}

Address DaemonConfig::grpc() const { return ParseAddress(keys.listen().grpc()).value(); }

Address DaemonConfig::http() const { return ParseAddress(keys.listen().http()).value(); }

TlsOptions DaemonConfig::tls() const {
  return {.cert = keys.tls().cert(),
          .key = keys.tls().key(),
          .ca = keys.tls().ca(),
          .identities = identities};
}

wire::TlsFiles DaemonConfig::etcd_tls() const {
  const v1::Configuration::Store::Etcd& etcd = keys.store().etcd();
  return {.ca = etcd.tls_ca(), .cert = etcd.tls_cert(), .key = etcd.tls_key()};
}

std::vector<std::string> DaemonConfig::allowed_hosts() const {
  return absl::StrSplit(keys.http().allowed_hosts(), ',', absl::SkipEmpty());
}

absl::StatusOr<DaemonConfig> LoadConfig(const ConfigSources& sources) {
  DaemonConfig config;
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
  EPLB_RETURN_IF_ERROR(CheckTls(config));
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
  const std::string& members = config.keys.store().etcd().endpoints();
  if (config.keys.store().backend() == kEtcdBackend && LeavesTheMachineInClear(members)) {
    told.push_back(absl::StrCat("store.etcd.endpoints = ", members,
                                ": not https, and other machines are in between; who reaches this "
                                "etcd may change what the ranks run"));
  }
  return told;
}

std::vector<std::string> UnknownVariables(const Variables& environment) {
  std::vector<std::string> known;
  for (const ConfigKey& key : ConfigKeys()) known.push_back(VariableOf(key.FullName()));
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
  const v1::Configuration::Store& store = config.keys.store();
  return store.path() == kMemoryBackend ? kMemoryBackend : store.backend();
}

std::string AdvertisedAddress(const DaemonConfig& config) {
  const v1::Configuration::Listen& listen = config.keys.listen();
  return listen.has_advertise() ? listen.advertise() : listen.grpc();
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
