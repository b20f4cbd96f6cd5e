#include "server/config_keys.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/registry.h"
#include "placement/status_macros.h"
#include "placement/suggestion.h"
#include "server/config_names.h"

namespace eplb {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

bool SetPolicyName(const ConfigValue& value, DaemonConfig* config) {
  const std::vector<std::string_view> names = PolicyNames();
  config->core.policy_name = value.text;
  return std::find(names.begin(), names.end(), value.text) != names.end();
}

bool SetFreezeSteps(const ConfigValue& value, DaemonConfig* config) {
  const absl::StatusOr<core::StepRange> steps = core::ParseSteps(value.text);
  if (!steps.ok()) return false;
  config->core.freeze_first_step = steps->first;
  config->core.freeze_last_step = steps->last;
  return true;
}

std::string FreezeText(const DaemonConfig& config) {
  return core::StepsText({config.core.freeze_first_step, config.core.freeze_last_step});
}

bool SetMode(const ConfigValue& value, DaemonConfig* config) {
  config->core.observe = value.text == "observe";
  return config->core.observe || value.text == "apply";
}

// "unix:PATH" as well, because addresses are written so.
bool SetUnixSocket(const ConfigValue& value, DaemonConfig* config) {
  std::string path;
  if (!SetPath(value, &path)) return false;
  if (path == kAutoSocket || path == kNoSocket) {
    config->unix_socket = path;
    return true;
  }
  if (path.rfind("unix:", 0) != 0) path.insert(0, "unix:");
  const absl::StatusOr<Address> address = ParseAddress(path);
  if (address.ok()) config->unix_socket = address->unix_path;
  return address.ok();
}

bool SetUnixAccess(const ConfigValue& value, DaemonConfig* config) {
  config->unix_socket_for_group = value.text == "group";
  return value.text == "group" || value.text == "owner";
}

constexpr ConfigKey kKeys[] = {
    {"listen.grpc", "ADDR:PORT or unix:PATH",
     [](const ConfigValue& v, DaemonConfig* c) { return SetAddress(v, true, &c->grpc); },
     [](const DaemonConfig& c) { return ValueText(c.grpc); }},
    {"listen.http", "ADDR:PORT",
     [](const ConfigValue& v, DaemonConfig* c) { return SetAddress(v, false, &c->http); },
     [](const DaemonConfig& c) { return ValueText(c.http); }},
    {"listen.unix", "\"auto\", \"none\" or the path of a socket", SetUnixSocket,
     [](const DaemonConfig& c) { return c.unix_socket; }},
    {"listen.unix_access", "\"owner\" or \"group\"", SetUnixAccess,
     [](const DaemonConfig& c) {
       return std::string(c.unix_socket_for_group ? "group" : "owner");
     }},
    {"http.allowed_hosts", "at most 64 host names, an array or separated by commas",
     [](const ConfigValue& v, DaemonConfig* c) { return SetHostNames(v, &c->http_allowed_hosts); },
     [](const DaemonConfig& c) { return ValueText(c.http_allowed_hosts); }},
    {"policy.name", "", SetPolicyName,
     [](const DaemonConfig& c) { return ValueText(c.core.policy_name); }},
    {"policy.mode", "\"apply\" or \"observe\"", SetMode,
     [](const DaemonConfig& c) { return std::string(c.core.observe ? "observe" : "apply"); }},
    {"policy.every_steps", "an integer in 1..2147483647",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, kMaxInt32, &c->core.policy_every_steps);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.policy_every_steps); }},
    {"policy.min_gain", "a number in 0..1",
     [](const ConfigValue& v, DaemonConfig* c) { return SetReal(v, 0, 1, &c->core.min_gain); },
     [](const DaemonConfig& c) { return ValueText(c.core.min_gain); }},
    {"policy.freeze_steps", "\"A:B\" with 0 <= A <= B, or \"\"", SetFreezeSteps,
     [](const DaemonConfig& c) { return FreezeText(c); }},
    {"report.min_coverage", "a number in 0.01..1",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetReal(v, 0.01, 1, &c->core.min_coverage);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.min_coverage); }},
    {"migration.layers_per_chunk", "an integer in 1..1048576",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1 << 20, &c->core.layers_per_chunk);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.layers_per_chunk); }},
    {"policy.horizon_steps", "an integer in 1..2147483647",
     [](const ConfigValue& v, DaemonConfig* c) {
       const std::optional<int64_t> steps = Integer(v, 1, kMaxInt32);
       if (steps) c->core.costs.horizon_steps = *steps;
       return steps.has_value();
     },
     [](const DaemonConfig& c) { return ValueText(c.core.costs.horizon_steps); }},
    {"cost.token_ns", "a number in 0..1e9; 0: not known",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetScaled(v, 0, 1e9, 1e-9, &c->core.costs.token_seconds);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.costs.token_seconds * 1e9); }},
    {"cost.intra_gbps", "a number of GB/s in 1e-6..1e6",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetScaled(v, 1e-6, 1e6, 1e9, &c->core.costs.intra_bytes_per_s);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.costs.intra_bytes_per_s / 1e9); }},
    {"cost.inter_gbps", "a number of GB/s in 1e-6..1e6",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetScaled(v, 1e-6, 1e6, 1e9, &c->core.costs.inter_bytes_per_s);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.costs.inter_bytes_per_s / 1e9); }},
    {"cost.stall", "a duration such as \"50ms\" in 0s..1h",
     [](const ConfigValue& v, DaemonConfig* c) {
       absl::Duration stall;
       if (!SetDuration(v, absl::ZeroDuration(), absl::Hours(1), &stall)) return false;
       c->core.costs.stall_seconds = absl::ToDoubleSeconds(stall);
       return true;
     },
     [](const DaemonConfig& c) { return ValueText(absl::Seconds(c.core.costs.stall_seconds)); }},
    {"cost.gradient_bytes", "an integer in 0..1125899906842624",
     [](const ConfigValue& v, DaemonConfig* c) {
       const std::optional<int64_t> bytes = Integer(v, 0, int64_t{1} << 50);
       if (bytes) c->core.costs.replica_gradient_bytes = *bytes;
       return bytes.has_value();
     },
     [](const DaemonConfig& c) { return ValueText(c.core.costs.replica_gradient_bytes); }},
    {"report.every_steps", "an integer in 1..1048576",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1 << 20, &c->core.report_every_steps);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.report_every_steps); }},
    {"vote.every_steps", "an integer in 1..1048576",  // a job's own choice: only compared
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1 << 20, &c->core.vote_every_steps);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.vote_every_steps); }},
    {"migration.max_pause", "a duration such as \"200ms\" in 1ms..1h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Milliseconds(1), absl::Hours(1), &c->core.max_pause);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_pause); }},
    {"store.path", "a path, or \"memory\"",
     [](const ConfigValue& v, DaemonConfig* c) { return SetPath(v, &c->store_path); },
     [](const DaemonConfig& c) { return c.store_path; }},
    {"tls.cert", "the path of a PEM file",
     [](const ConfigValue& v, DaemonConfig* c) { return SetPath(v, &c->tls.cert); },
     [](const DaemonConfig& c) { return c.tls.cert; }},
    {"tls.key", "the path of a PEM file",
     [](const ConfigValue& v, DaemonConfig* c) { return SetPath(v, &c->tls.key); },
     [](const DaemonConfig& c) { return c.tls.key; }},
    {"tls.ca", "the path of a PEM file",
     [](const ConfigValue& v, DaemonConfig* c) { return SetPath(v, &c->tls.ca); },
     [](const DaemonConfig& c) { return c.tls.ca; }},
    {"tls.identity", "a table of rules in the configuration file",
     [](const ConfigValue&, DaemonConfig*) { return false; },
     [](const DaemonConfig&) { return std::string(); }},
    {"drain.grace", "a duration such as \"10s\" in 0s..10m",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::ZeroDuration(), absl::Minutes(10), &c->drain_grace);
     },
     [](const DaemonConfig& c) { return ValueText(c.drain_grace); }},
    {"log.level", "\"debug\", \"info\", \"warn\" or \"error\"",
     [](const ConfigValue& v, DaemonConfig* c) {
       c->log_level = v.text;
       return v.text == "debug" || v.text == "info" || v.text == "warn" || v.text == "error";
     },
     [](const DaemonConfig& c) { return c.log_level; }},
    {"limits.max_jobs", "an integer in 1..100000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 100000, &c->core.max_jobs);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_jobs); }},
    {"limits.max_ranks_per_job", "an integer in 1..1000000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->core.max_ranks_per_job);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_ranks_per_job); }},
    {"limits.max_pending_windows", "an integer in 1..1000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000, &c->core.max_pending_windows);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_pending_windows); }},
    {"limits.max_windows", "an integer in 1..10000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 10000, &c->core.max_windows);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_windows); }},
    {"limits.session_grace", "a duration such as \"10s\" in 0s..1h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::ZeroDuration(), absl::Hours(1), &c->core.session_grace);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.session_grace); }},
    {"limits.job_expiry", "a duration such as \"24h\" in 1s..8760h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(8760), &c->core.job_expiry);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.job_expiry); }},
    {"limits.max_history", "an integer in 1..100000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 100000, &c->limits.max_history);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_history); }},
    {"limits.solve_deadline", "a duration such as \"60s\" in 1s..1h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(1), &c->core.solve_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.solve_deadline); }},
    {"limits.prepare_deadline", "a duration such as \"60s\" in 1s..1h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(1), &c->core.prepare_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.prepare_deadline); }},
    {"limits.resolve_deadline", "a duration such as \"660s\" in 1s..24h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(24), &c->core.resolve_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.resolve_deadline); }},
    {"limits.retract_deadline", "a duration such as \"60s\" in 1s..1h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(1), &c->core.retract_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.retract_deadline); }},
    {"limits.max_sessions", "an integer in 1..1000000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->limits.max_sessions);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_sessions); }},
    {"limits.max_queued_events", "an integer in 16..1000000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 16, 1000000, &c->limits.max_queued_events);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_queued_events); }},
    {"limits.max_queued_mib", "an integer in 1..65536",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 65536, &c->limits.max_queued_mib);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_queued_mib); }},
    {"limits.messages_per_second", "an integer in 1..1000000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->limits.messages_per_second);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.messages_per_second); }},
    {"limits.max_exchange_mib", "an integer in 1..65536",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 65536, &c->limits.max_exchange_mib);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_exchange_mib); }},
    {"limits.max_sessions_per_peer", "an integer in 1..1000000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->limits.max_sessions_per_peer);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_sessions_per_peer); }},
    {"limits.calls_per_second", "an integer in 1..1000000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->limits.calls_per_second);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.calls_per_second); }},
    {"limits.max_streams_per_connection", "an integer in 1..100000",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 100000, &c->limits.max_streams_per_connection);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_streams_per_connection); }},
    {"limits.max_rpc_memory_mib", "an integer in 64..1048576",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 64, 1 << 20, &c->limits.max_rpc_memory_mib);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_rpc_memory_mib); }},
    {"limits.handshake_deadline", "a duration such as \"10s\" in 100ms..1m",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Milliseconds(100), absl::Minutes(1),
                          &c->limits.handshake_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.handshake_deadline); }},
    {"limits.start_deadline", "a duration such as \"60s\" in 100ms..1h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Milliseconds(100), absl::Hours(1), &c->limits.start_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.start_deadline); }},
    {"limits.hello_deadline", "a duration such as \"10s\" in 100ms..1h",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Milliseconds(100), absl::Hours(1), &c->limits.hello_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.hello_deadline); }},
};

absl::Status UnknownKey(std::string_view name) {
  std::vector<std::string> known;
  for (const ConfigKey& key : kKeys) known.emplace_back(key.name);
  return absl::InvalidArgumentError(
      absl::StrCat(OnOneLine(name), ": unknown key", Suggestion(name, known)));
}

const ConfigKey* FindKey(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kKeys), std::end(kKeys),
                                         [name](const ConfigKey& key) { return key.name == name; });
  return found == std::end(kKeys) ? nullptr : found;
}

absl::Status Unexpected(std::string_view name, const ConfigValue& value, const ConfigKey& key) {
  return absl::InvalidArgumentError(
      absl::StrCat(OnOneLine(name), " = ", OnOneLine(value.text), ": expected ", ExpectedOf(key)));
}

constexpr std::string_view kJobs = "jobs.";

// A key of one job, jobs.NAME.KEY, and the daemon's own key that it overrides.
struct JobKey {
  std::string_view name;
  std::string_view general;
  void (*take)(const DaemonConfig& from, core::SettingsPatch* patch);
};

constexpr JobKey kJobKeys[] = {
    {"name", "policy.name",
     [](const DaemonConfig& c, core::SettingsPatch* p) { p->policy_name = c.core.policy_name; }},
    {"mode", "policy.mode",
     [](const DaemonConfig& c, core::SettingsPatch* p) {
       p->mode = c.core.observe ? "observe" : "apply";
     }},
    {"every_steps", "policy.every_steps",
     [](const DaemonConfig& c, core::SettingsPatch* p) {
       p->every_steps = c.core.policy_every_steps;
     }},
    {"min_gain", "policy.min_gain",
     [](const DaemonConfig& c, core::SettingsPatch* p) { p->min_gain = c.core.min_gain; }},
    {"horizon_steps", "policy.horizon_steps",
     [](const DaemonConfig& c, core::SettingsPatch* p) {
       p->horizon_steps = c.core.costs.horizon_steps;
     }},
    {"freeze_steps", "policy.freeze_steps",
     [](const DaemonConfig& c, core::SettingsPatch* p) {
       p->freeze_steps = core::StepsText({c.core.freeze_first_step, c.core.freeze_last_step});
     }},
    {"max_pause", "migration.max_pause",
     [](const DaemonConfig& c, core::SettingsPatch* p) { p->max_pause = c.core.max_pause; }},
    {"layers_per_chunk", "migration.layers_per_chunk",
     [](const DaemonConfig& c, core::SettingsPatch* p) {
       p->layers_per_chunk = c.core.layers_per_chunk;
     }},
};

absl::Status SetJobKey(std::string_view name, const ConfigValue& value, DaemonConfig* config) {
  const size_t dot = name.rfind('.');
  const std::string_view own = name.substr(dot + 1);
  const auto* const key = std::find_if(std::begin(kJobKeys), std::end(kJobKeys),
                                       [own](const JobKey& one) { return one.name == own; });
  if (dot <= kJobs.size() || key == std::end(kJobKeys)) {
    std::string known;
    for (const JobKey& one : kJobKeys) absl::StrAppend(&known, " ", std::string(one.name));
    return absl::InvalidArgumentError(
        absl::StrCat(OnOneLine(name), ": expected jobs.NAME.KEY with KEY one of", known));
  }
  const std::string job(name.substr(kJobs.size(), dot - kJobs.size()));
  EPLB_RETURN_IF_ERROR(CheckJobName(job));
  DaemonConfig scratch;
  const ConfigKey& general = *FindKey(key->general);
  if (!general.set(value, &scratch)) return Unexpected(name, value, general);
  key->take(scratch, &config->core.job_settings[job]);
  return absl::OkStatus();
}

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

std::string ExpectedOf(const ConfigKey& key) {
  if (!key.expected.empty()) return std::string(key.expected);
  std::string expected = "one of";
  for (const std::string_view known : PolicyNames()) {
    absl::StrAppend(&expected, " ", std::string(known));
  }
  return expected;
}

absl::Status SetConfigKey(std::string_view name, const ConfigValue& value, DaemonConfig* config) {
  if (name.substr(0, kJobs.size()) == kJobs) return SetJobKey(name, value, config);
  const ConfigKey* const key = FindKey(name);
  if (key == nullptr) return UnknownKey(name);
  if (key->set(value, config)) return absl::OkStatus();
  return Unexpected(name, value, *key);
}

}  // namespace eplb
