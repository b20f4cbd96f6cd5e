// The configuration of eplbd: defaults < TOML file < EPLB_* environment < flags.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/tls_files.h"
#include "server/config/tls_options.h"
#include "server/core/values/config.h"
#include "server/process/address.h"

namespace eplb {

// Source of a value.
struct ConfigOrigin {
  std::string source;      // "eplbd.toml:12", "EPLB_POLICY_NAME", "command line"
  std::string given = {};  // the value as it was written
};

struct DaemonLimits {
  int32_t max_sessions = 20000;              // open streams of all jobs
  int32_t max_queued_events = 65536;         // messages that wait for the core
  int32_t max_queued_mib = 256;              // load reports that wait for the core, MiB
  int32_t max_window_mib = 512;              // load windows of all jobs, MiB
  int32_t max_past_loads_mib = 64;           // loads of past windows that HTTP shows, MiB
  int32_t messages_per_second = 100;         // average of one stream; a burst may hold 20 s of them
  int32_t max_sessions_per_peer = 4096;      // open streams from one address
  int32_t calls_per_second = 10000;          // other calls from one address; twice that in a burst
  int32_t max_streams_per_connection = 128;  // calls at work on one connection
  int32_t max_rpc_memory_mib = 1024;         // gRPC's buffers of all connections
  int32_t solver_threads = 1;                // threads that compute placements, each of another job
  int32_t max_history = 64;                  // placements kept per job in the store
  int32_t max_all_gather_mib = 256;          // blobs of all rendezvous, MiB
  absl::Duration start_deadline = absl::Seconds(60);  // longest rendezvous
  absl::Duration hello_deadline =
      absl::Seconds(10);  // from the stream's start to its first message
  // From a connection's start to its first settings: TLS and HTTP/2 together.
  absl::Duration handshake_deadline = absl::Seconds(10);
};

// Options of store.backend = etcd.
struct EtcdOptions {
  std::string endpoints;  // text for ParseEtcdEndpoints
  std::string prefix = "/eplb/v1";
  wire::TlsFiles tls = {};
  int32_t lease_seconds = 5;
  absl::Duration timeout = absl::Seconds(1);  // deadline of one call to one member
};

inline constexpr char kSqliteBackend[] = "sqlite";
inline constexpr char kMemoryBackend[] = "memory";
inline constexpr char kEtcdBackend[] = "etcd";

inline constexpr char kAutoSocket[] = "auto";
inline constexpr char kNoSocket[] = "none";

struct DaemonConfig {
  core::Config core = {.report_every_steps = 50, .vote_every_steps = 8};
  DaemonLimits limits;
  TlsOptions tls;
  Address grpc = {.host = "127.0.0.1", .port = 29610};
  Address http = {.host = "127.0.0.1", .port = 29611};
  // Beside `grpc`, for this machine: kAutoSocket (ChooseUnixSocket decides), kNoSocket or a path.
  std::string unix_socket = kAutoSocket;
  bool unix_socket_optional = false;            // it was chosen, not asked for: go on without it
  bool unix_socket_for_group = false;           // sockets may be used by their file's group, too
  std::vector<std::string> http_allowed_hosts;  // names besides localhost that HTTP answers to
  bool metrics_per_expert = false;              // tokens of each layer and expert in /metrics
  std::string advertise;  // address of this daemon for ranks when it leads; empty: `grpc`
  std::string store_backend = kSqliteBackend;
  std::string store_path;  // empty: DefaultStorePath(); "memory": nothing is kept
  EtcdOptions etcd;
  absl::Duration drain_grace = absl::Seconds(10);
  std::string log_level = "info";
  std::string log_format = "auto";  // json, text; auto: text on a terminal
  // By key, "policy.name" and "jobs.NAME.KEY": who set it. A key that is not here has its default.
  std::map<std::string, ConfigOrigin> origins;
};

// Names of environment variables, and their values.
using Variables = std::vector<std::pair<std::string, std::string>>;

struct ConfigSources {
  std::string file = {};  // TOML; empty = none
  // Content of the file, as ReadConfigFile returned it. Not set: LoadConfig reads the file.
  std::optional<std::string> file_text = std::nullopt;
  Variables environment = {};  // only EPLB_* is looked at
  // Key and value, e.g. {"listen.grpc", "127.0.0.1:0"}.
  std::vector<std::pair<std::string, std::string>> flags = {};
};

// errors: InvalidArgument, one line that names the source (file and line, variable or flag), the
// key, its value and what is expected; for an unknown key the nearest known one. A variable is
// refused as unknown only when its name begins with a known table, e.g. EPLB_POLICY_. Those that
// only clients read (EPLB_ENDPOINT, EPLB_LIBRARY, EPLB_DISABLE, EPLB_TLS_SERVER_NAME) are not
// looked at.
absl::StatusOr<DaemonConfig> LoadConfig(const ConfigSources& sources);

// One line for each value that is taken and was probably meant otherwise, with its source.
std::vector<std::string> DoubtfulValues(const DaemonConfig& config);

// One line for each EPLB_* variable that neither LoadConfig nor a client reads, with the nearest
// one that LoadConfig does, and one for the variables of each Kubernetes service. They stop
// nothing, for other programs may have variables of that name.
std::vector<std::string> UnknownVariables(const Variables& environment);

// store.backend, but "memory" where store.path says so.
std::string StoreBackendOf(const DaemonConfig& config);
// listen.advertise, else listen.grpc.
std::string AdvertisedAddress(const DaemonConfig& config);

// $STATE_DIRECTORY/eplbd.db (of a service manager; the first of several), else
// $XDG_STATE_HOME/eplb/eplbd.db, else ~/.local/state/eplb/eplbd.db.
// errors: FailedPrecondition when none of these is among `environment`.
absl::StatusOr<std::string> DefaultStorePath(const Variables& environment);

// Returns the paths at which a daemon without a configured socket may listen, the best first:
// $RUNTIME_DIRECTORY/eplbd.sock (of a service manager; the first of several), otherwise
// /run/eplb/eplbd.sock and $XDG_RUNTIME_DIR/eplb/eplbd.sock.
std::vector<std::string> DefaultUnixSockets(const Variables& environment);

}  // namespace eplb
