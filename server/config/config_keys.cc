// The rows of the table, and how a key is found and set.
#include "server/config/config_keys.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "base/suggestion.h"
#include "placement/bandwidth.h"
#include "proto/wire/messages.h"
#include "proto/wire/names.h"
#include "server/process/address.h"

namespace eplb {
namespace {

constexpr size_t kMaxHostNames = 64;
constexpr std::string_view kJobs = "jobs.";
constexpr PathRange kPemFile{"the path of a PEM file"};

const std::string& Text(const Scalar& value) { return std::get<std::string>(value); }

// Scalars of members, and members of scalars. A member of a type without an overload is a scalar.
template <class T>
Scalar ScalarOf(const T& member) {
  return ToScalar(member);
}
Scalar ScalarOf(const Address& address) { return address.Text(); }
Scalar ScalarOf(bool flag) { return flag ? "true" : "false"; }
Scalar ScalarOf(const std::vector<std::string>& names) { return absl::StrJoin(names, ","); }
template <class T>
void Assign(const Scalar& value, T& member) {
  member = FromScalar<T>(value);
}
void Assign(const Scalar& value, Address& address) { address = ParseAddress(Text(value)).value(); }
void Assign(const Scalar& value, bool& flag) { flag = Text(value) == "true"; }
void Assign(const Scalar& value, std::vector<std::string>& names) {
  names = absl::StrSplit(Text(value), ',', absl::SkipEmpty());
}

// Returns the part of the configuration that has a member.
template <class Part, class Config>
auto& PartOf(Config& config) {
  if constexpr (std::is_same_v<Part, core::Config>) return config.core;
  if constexpr (std::is_same_v<Part, Costs>) return config.core.costs;
  if constexpr (std::is_same_v<Part, DaemonLimits>) return config.limits;
  if constexpr (std::is_same_v<Part, EtcdOptions>) return config.etcd;
  if constexpr (std::is_same_v<Part, wire::TlsFiles>) return config.etcd.tls;
  if constexpr (std::is_same_v<Part, TlsOptions>) return config.tls;
  if constexpr (std::is_same_v<Part, DaemonConfig>) return config;
}

// A key whose value is a member of a part of the configuration.
template <class Part, class T>
ConfigKey Key(std::string_view name, ConfigRange range, std::string_view help, T Part::*member,
              ConfigFlag flag = {}, std::string_view default_help = {}) {
  return {
      .name = std::string(name),
      .range = range,
      .help = help,
      .get = [member](const DaemonConfig& c) { return ScalarOf(PartOf<Part>(c).*member); },
      .set = [member](const Scalar& v, DaemonConfig* c) { Assign(v, PartOf<Part>(*c).*member); },
      .flag = flag,
      .default_help = default_help};
}

ConfigKey BandwidthKey(std::string_view name, std::string_view help, double Costs::*member) {
  return {.name = std::string(name),
          .range = BandwidthRange{},
          .help = help,
          .get = [member](const DaemonConfig& c) -> Scalar {
            return BandwidthText(c.core.costs.*member);
          },
          .set =
              [member](const Scalar& v, DaemonConfig* c) {
                c->core.costs.*member = ParseBandwidth(Text(v)).value();
                c->core.costs.bandwidths = BandwidthSource::kGiven;
              }};
}

// Returns the key of the daemon's own value of a job's setting.
ConfigKey KeyOf(const wire::SettingRow& row) {
  return {.name = absl::StrCat(std::string(row.table), ".", std::string(row.name)),
          .range = std::visit([](const auto& range) { return ConfigRange(range); }, row.range),
          .help = row.help,
          .get = [&row](const DaemonConfig& config) { return row.get(config.core.settings); },
          .set = [&row](const Scalar& value,
                        DaemonConfig* config) { row.set(value, &config->core.settings); },
          .setting = &row};
}

using Keys = std::vector<ConfigKey>;

Keys ListenKeys() {
  return {
      Key("listen.grpc", AddressRange{.unix_allowed = true},
          "Address for ranks and eplbctl; other machines may reach it only with [tls].",
          &DaemonConfig::grpc,
          {"--listen", "gRPC address, ADDR:PORT or unix:PATH (127.0.0.1:29610)"}),
      Key("listen.http", AddressRange{.unix_allowed = false},
          "Address of /metrics, /livez, /readyz and /api/v1, unencrypted and for reading only.",
          &DaemonConfig::http, {"--http", "HTTP address, ADDR:PORT (127.0.0.1:29611)"}),
      Key("listen.advertise", AddressRange{.unix_allowed = false},
          "Address under which ranks and eplbctl reach this daemon while it leads; with "
          "store.backend = etcd the other daemons send them here.",
          &DaemonConfig::advertise, {}, "listen.grpc"),
      Key("listen.unix", SocketPathRange{},
          "A second address on a Unix socket. auto: eplbd.sock in $RUNTIME_DIRECTORY, otherwise in "
          "/run/eplb, otherwise in $XDG_RUNTIME_DIR/eplb.",
          &DaemonConfig::unix_socket),
      {.name = "listen.unix_access",
       .range = WordRange{"owner", "group"},
       .help = "Users that may connect to a Unix socket of the daemon: its own user, or also the "
               "group.",
       .get = [](const DaemonConfig& c) -> Scalar {
         return c.unix_socket_for_group ? "group" : "owner";
       },
       .set = [](const Scalar& v,
                 DaemonConfig* c) { c->unix_socket_for_group = Text(v) == "group"; }},
      Key("http.allowed_hosts", HostNameRange{.most = kMaxHostNames},
          "Names that an HTTP request may have in Host, besides IP addresses and localhost; list a "
          "proxy's name here.",
          &DaemonConfig::http_allowed_hosts),
      Key("metrics.per_expert", BooleanRange{},
          "Adds to /metrics the newest window's tokens of each layer and expert, for as many jobs "
          "as the limit of series has room for.",
          &DaemonConfig::metrics_per_expert),
  };
}

Keys SettingKeys() {
  Keys keys;
  for (const wire::SettingRow& row : wire::SettingRows()) keys.push_back(KeyOf(row));
  return keys;
}

Keys ReportKeys() {
  return {
      Key("report.min_coverage", NumberRange{0.01, 1},
          "Share of a job's reporting ranks whose counts a load window needs before it is used.",
          &core::Config::min_coverage),
      Key("report.every_steps", IntegerRange{1, 1 << 20},
          "Steps in a load window. A run begins with the report_every of its ranks and takes this "
          "length a few windows later.",
          &core::Config::report_every_steps),
      Key("vote.every_steps", IntegerRange{0, 1 << 20, "0: not compared"},
          "The vote_every that jobs are expected to choose. A job keeps its own choice; a "
          "difference is recorded as an event.",
          &core::Config::vote_every_steps),
  };
}

Keys CostKeys() {
  return {
      {.name = "cost.token_ns",
       .range = NumberRange{0, 1e9, "0: not known"},
       .help = "Time of a token on the fullest GPU, forward and backward. Without it policy auto "
               "measures one, and other policies use policy.min_gain alone.",
       .get = [](const DaemonConfig& c) -> Scalar { return c.core.costs.token_seconds * 1e9; },
       .set = [](const Scalar& v,
                 DaemonConfig* c) { c->core.costs.token_seconds = std::get<double>(v) * 1e-9; }},
      BandwidthKey("cost.intra_gbps",
                   "Bandwidth of one GPU to the GPUs of its node, in one direction; without a "
                   "value migrations measure it.",
                   &Costs::intra_bytes_per_s),
      BandwidthKey("cost.inter_gbps",
                   "Bandwidth of one GPU to other nodes, in one direction; without a value "
                   "migrations measure it.",
                   &Costs::inter_bytes_per_s),
      {.name = "cost.stall",
       .range = DurationRange{absl::ZeroDuration(), absl::Hours(1), "50ms"},
       .help = "Time that a migration costs besides the transfer of its bytes.",
       .get = [](const DaemonConfig& c) -> Scalar {
         return absl::Seconds(c.core.costs.stall_seconds);
       },
       .set =
           [](const Scalar& v, DaemonConfig* c) {
             c->core.costs.stall_seconds = absl::ToDoubleSeconds(std::get<absl::Duration>(v));
           }},
      Key("cost.gradient_bytes", IntegerRange{0, int64_t{1} << 50},
          "Gradient bytes of one expert. Above 0, a replica on another GPU costs the transfer of "
          "weights and gradients in each step.",
          &Costs::replica_gradient_bytes),
  };
}

// Keys of daemons that share a store.
Keys EtcdKeys() {
  return {
      Key("store.backend", WordRange{kSqliteBackend, kMemoryBackend, kEtcdBackend},
          "Place of terms, placements, decisions and the audit log: a file, memory, or an etcd "
          "that several daemons share, of which one leads.",
          &DaemonConfig::store_backend),
      Key("store.etcd.endpoints", EtcdEndpointsRange{},
          "Members of the etcd that the daemons share. If one does not answer, a daemon asks the "
          "next one.",
          &EtcdOptions::endpoints),
      Key("store.etcd.prefix", PathRange{"a path such as \"/eplb/v1\""},
          "Begin of the keys of these daemons. Daemons with another prefix are independent.",
          &EtcdOptions::prefix),
      Key("store.etcd.lease_seconds", IntegerRange{2, 60},
          "Seconds after which another daemon may lead if the leader does not renew its lease; it "
          "stops proposing after two thirds. While etcd is slow at least 10 calls, up to 60 s.",
          &EtcdOptions::lease_seconds),
      Key("store.etcd.timeout", DurationRange{absl::Milliseconds(50), absl::Seconds(10), "1s"},
          "Longest wait for an answer of one member of etcd before the next one is asked. Up to 8 "
          "times as long while etcd is slow.",
          &EtcdOptions::timeout),
      Key("store.etcd.tls_ca", kPemFile, "CA certificates that sign the members' certificates.",
          &wire::TlsFiles::ca),
      Key("store.etcd.tls_cert", kPemFile,
          "The daemon's certificate for etcd; a renewed file is used after a restart.",
          &wire::TlsFiles::cert),
      Key("store.etcd.tls_key", kPemFile, "The private key of store.etcd.tls_cert.",
          &wire::TlsFiles::key),
  };
}

Keys FileKeys() {
  return {
      Key("store.path", PathRange{"a path, or \"memory\""},
          "Database with terms, placements, decisions and the audit log; \"memory\" keeps nothing "
          "after the end.",
          &DaemonConfig::store_path, {"--store", "database file, or \"memory\" to keep nothing"},
          "eplbd.db in $STATE_DIRECTORY, otherwise in $XDG_STATE_HOME/eplb"),
      Key("tls.cert", kPemFile,
          "The daemon's certificate, with the certificates between it and the CA; a renewed file "
          "is used without a restart.",
          &TlsOptions::cert),
      Key("tls.key", kPemFile, "The private key of tls.cert.", &TlsOptions::key),
      Key("tls.ca", kPemFile, "CA certificates that sign the peers' certificates.",
          &TlsOptions::ca),
      {.name = "tls.identity",
       .range = FileTable{},
       .help = "Rules that make a certificate a rank, a viewer or an operator, and of which jobs; "
               "without a rule every caller is refused.",
       .get = [](const DaemonConfig&) -> Scalar { return ""; },
       .set = [](const Scalar&, DaemonConfig*) {}},
  };
}

Keys ProcessKeys() {
  return {
      Key("drain.grace", DurationRange{absl::ZeroDuration(), absl::Minutes(10), "10s"},
          "Time that SIGTERM leaves to ranks and calls before open ones are cut.",
          &DaemonConfig::drain_grace),
      Key("log.format", WordRange{"auto", "json", "text"},
          "One JSON object per line, or text for people; auto: text if stderr is a terminal.",
          &DaemonConfig::log_format),
      Key("log.level", WordRange{"debug", "info", "warn", "error"}, "Lowest level that is logged.",
          &DaemonConfig::log_level, {"--log-level", "debug, info, warn or error"}),
  };
}

// Limits of jobs, and of their stored and computed values.
Keys JobLimitKeys() {
  return {
      Key("limits.max_jobs", IntegerRange{1, 100000},
          "Most jobs that are known at once; one more is refused while all have ranks.",
          &core::Config::max_jobs),
      Key("limits.max_ranks_per_job", IntegerRange{1, 1000000},
          "Most ranks of one job; a larger job is refused.", &core::Config::max_ranks_per_job),
      Key("limits.max_pending_windows", IntegerRange{1, 1000},
          "Most load windows per job that still wait for ranks after 20 s; only max_window_mib "
          "limits younger ones.",
          &core::Config::max_pending_windows),
      Key("limits.max_windows", IntegerRange{1, 10000},
          "Most complete load windows kept per job in memory.", &core::Config::max_windows),
      Key("limits.session_grace", DurationRange{absl::ZeroDuration(), absl::Hours(1), "10s"},
          "Time that a rank may be disconnected before its run has ended.",
          &core::Config::session_grace),
      Key("limits.job_expiry", DurationRange{absl::Seconds(1), absl::Hours(8760), "24h"},
          "Time without ranks after which a job is forgotten, unless an operator stopped it.",
          &core::Config::job_expiry),
      Key("limits.max_history", IntegerRange{1, 100000},
          "Most placements kept per job, to read and to roll back to.", &DaemonLimits::max_history),
      Key("limits.solver_threads", IntegerRange{1, 64},
          "Threads that compute placements, each of another job; one thread serves jobs by turns.",
          &DaemonLimits::solver_threads),
      Key("limits.solve_deadline", DurationRange{absl::Seconds(1), absl::Hours(1), "60s"},
          "Longest computation of a policy, which is then abandoned; five times this is the "
          "longest wait for the computation to begin.",
          &core::Config::solve_deadline),
      Key("limits.prepare_deadline", DurationRange{absl::Seconds(1), absl::Hours(1), "60s"},
          "Longest wait for all ranks to prepare a proposal before it is withdrawn.",
          &core::Config::prepare_deadline),
      Key("limits.voting_deadline", DurationRange{absl::Seconds(1), absl::Hours(24), "660s"},
          "Longest wait for the outcome of a prepared proposal; keep it above the ranks' own "
          "deadline of a vote, 600 s.",
          &core::Config::voting_deadline),
      Key("limits.cancel_deadline", DurationRange{absl::Seconds(1), absl::Hours(1), "60s"},
          "Longest wait for the ranks to confirm that a proposal is withdrawn.",
          &core::Config::cancel_deadline),
  };
}

// Limits of queues, connections and calls.
Keys TrafficLimitKeys() {
  return {
      Key("limits.max_sessions", IntegerRange{1, 1000000},
          "Most open streams of ranks, all jobs together.", &DaemonLimits::max_sessions),
      Key("limits.max_queued_events", IntegerRange{16, 1000000},
          "Most messages that wait for the daemon's core. From an eighth of it on, a rank's next "
          "report waits in the network; above a half, reports are dropped and counted.",
          &DaemonLimits::max_queued_events),
      Key("limits.max_queued_mib", IntegerRange{1, 65536},
          "Most MiB of load reports that wait for the daemon's core. From a quarter of it on, a "
          "rank's next report waits in the network; reports beyond it are dropped and counted.",
          &DaemonLimits::max_queued_mib),
      Key("limits.max_window_mib", IntegerRange{1, 1 << 20},
          "Most MiB of the load windows of all jobs. The job that holds most loses its oldest "
          "complete windows first, then pending ones. Each job keeps its two newest complete "
          "windows and one pending window.",
          &DaemonLimits::max_window_mib),
      Key("limits.max_past_loads_mib", IntegerRange{1, 1 << 20},
          "Most MiB of the loads of past windows that the web page can show; the oldest are "
          "dropped first, their figures stay.",
          &DaemonLimits::max_past_loads_mib),
      Key("limits.messages_per_second", IntegerRange{1, 1000000},
          "Most messages per second from one rank on average; a burst may hold the messages of 20 "
          "s.",
          &DaemonLimits::messages_per_second),
      Key("limits.max_all_gather_mib", IntegerRange{1, 65536},
          "Most MiB of the bytes that starting ranks all-gather, all jobs together.",
          &DaemonLimits::max_all_gather_mib),
      Key("limits.max_sessions_per_peer", IntegerRange{1, 1000000},
          "Most open streams of ranks from one address.", &DaemonLimits::max_sessions_per_peer),
      Key("limits.calls_per_second", IntegerRange{1, 1000000},
          "Most calls per second from one address, besides streams; twice as many in a burst.",
          &DaemonLimits::calls_per_second),
      Key("limits.max_streams_per_connection", IntegerRange{1, 100000},
          "Most calls at work on one connection.", &DaemonLimits::max_streams_per_connection),
      Key("limits.max_rpc_memory_mib", IntegerRange{64, 1 << 20},
          "Most MiB of gRPC's buffers, all connections together.",
          &DaemonLimits::max_rpc_memory_mib),
      Key("limits.handshake_deadline",
          DurationRange{absl::Milliseconds(100), absl::Minutes(1), "10s"},
          "Longest time from a connection's start to the end of its TLS and HTTP/2 handshake.",
          &DaemonLimits::handshake_deadline),
      Key("limits.start_deadline", DurationRange{absl::Milliseconds(100), absl::Hours(1), "60s"},
          "Longest wait for all ranks of a run to register, and to join an all-gather of bytes.",
          &DaemonLimits::start_deadline),
      Key("limits.hello_deadline", DurationRange{absl::Milliseconds(100), absl::Hours(1), "10s"},
          "Longest wait for the first message of a new stream.", &DaemonLimits::hello_deadline),
  };
}

Keys AllKeys() {
  Keys all;
  for (Keys (*make)() : {&ListenKeys, &SettingKeys, &ReportKeys, &CostKeys, &EtcdKeys, &FileKeys,
                         &ProcessKeys, &JobLimitKeys, &TrafficLimitKeys}) {
    for (ConfigKey& key : make()) all.push_back(std::move(key));
  }
  return all;
}

const ConfigKey* FindKey(std::string_view name) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

absl::Status UnknownKey(std::string_view name) {
  std::vector<std::string> known;
  for (const ConfigKey& key : ConfigKeys()) known.push_back(key.name);
  return InvalidInput(Clipped(name), ": unknown key", Suggestion(name, known));
}

absl::Status Unexpected(std::string_view name, const WrittenValue& value,
                        const std::string& expected) {
  return InvalidInput(Clipped(name), " = ", Clipped(value.text), ": expected ", expected);
}

absl::Status SetJobKey(std::string_view name, const WrittenValue& value, DaemonConfig* config) {
  const size_t dot = name.rfind('.');
  const std::string_view own = name.substr(dot + 1);
  const std::span<const wire::SettingRow> rows = wire::SettingRows();
  const auto row =
      std::ranges::find_if(rows, [own](const wire::SettingRow& one) { return one.name == own; });
  if (dot <= kJobs.size() || row == rows.end()) {
    std::string known;
    for (const wire::SettingRow& one : rows) absl::StrAppend(&known, " ", std::string(one.name));
    return InvalidInput(Clipped(name), ": expected jobs.NAME.KEY with KEY one of", known);
  }
  const std::string job(name.substr(kJobs.size(), dot - kJobs.size()));
  EPLB_RETURN_IF_ERROR(CheckJobName(job));
  const std::optional<Scalar> read = row->Read(value);
  if (!read) return Unexpected(name, value, row->Expected());
  row->set_given(*read, &config->core.job_settings[job]);
  return absl::OkStatus();
}

}  // namespace

std::optional<Scalar> ConfigKey::Read(const WrittenValue& written) const {
  return std::visit([&](const auto& each) { return each.Read(written); }, range);
}

std::string ConfigKey::Expected() const {
  return std::visit([](const auto& each) { return each.Expected(); }, range);
}

std::span<const ConfigKey> ConfigKeys() {
  static const auto& keys = *new Keys(AllKeys());
  return keys;
}

absl::Status SetConfigKey(std::string_view name, const WrittenValue& value, DaemonConfig* config) {
  if (name.substr(0, kJobs.size()) == kJobs) return SetJobKey(name, value, config);
  const ConfigKey* const key = FindKey(name);
  if (key == nullptr) return UnknownKey(name);
  const std::optional<Scalar> read = key->Read(value);
  if (!read) return Unexpected(name, value, key->Expected());
  key->set(*read, config);
  return absl::OkStatus();
}

absl::Status SetConfigKeyFrom(const std::string& source, std::string_view name,
                              const WrittenValue& value, DaemonConfig* config) {
  EPLB_RETURN_IF_ERROR(SetConfigKey(name, value, config));
  config->origins[std::string(name)] = {.source = source, .given = value.text};
  return absl::OkStatus();
}

std::string VariableOf(std::string_view key) {
  std::string name = absl::StrCat("EPLB_", absl::AsciiStrToUpper(std::string(key)));
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

absl::Status CheckJobName(std::string_view name) {
  if (wire::CheckPlainName("job", name).ok()) return absl::OkStatus();
  return InvalidInput("jobs.\"", Clipped(name), "\": expected a job's name, 1..",
                      wire::kMaxNameLength, " letters, digits, '.', '_' and '-'");
}

}  // namespace eplb
