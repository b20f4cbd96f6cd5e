// The configuration of eplbd: defaults < TOML file < EPLB_* environment < flags.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "base/tls_files.h"
#include "server/config/tls_options.h"
#include "server/process/address.h"

#include "eplb/v1/config.pb.h"

namespace eplb {

// Source of a value.
struct ConfigOrigin {
  std::string source;      // "eplbd.toml:12", "EPLB_POLICY_NAME", "command line"
  std::string given = {};  // the value as it was written
};

inline constexpr char kSqliteBackend[] = "sqlite";
inline constexpr char kMemoryBackend[] = "memory";
inline constexpr char kEtcdBackend[] = "etcd";

inline constexpr char kAutoSocket[] = "auto";
inline constexpr char kNoSocket[] = "none";

struct DaemonConfig {
  DaemonConfig();

  v1::Configuration keys;                // `policy` has every setting, tls.identity nothing
  std::vector<IdentityRule> identities;  // rules of tls.identity
  bool unix_socket_optional = false;     // it was chosen, not asked for: go on without it
  // By key, "policy.name" and "jobs.NAME.KEY": who set it. A key that is not here has its default.
  std::map<std::string, ConfigOrigin> origins;

  Address grpc() const;
  Address http() const;
  TlsOptions tls() const;
  wire::TlsFiles etcd_tls() const;
  std::vector<std::string> allowed_hosts() const;
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
