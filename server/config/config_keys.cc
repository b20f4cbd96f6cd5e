#include "server/config/config_keys.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "base/suggestion.h"
#include "placement/bandwidth.h"
#include "placement/policies/registry.h"
#include "server/config/config_names.h"

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
     "Where ranks and eplbctl connect; off loopback this address needs [tls].",
     [](const ConfigValue& v, DaemonConfig* c) { return SetAddress(v, true, &c->grpc); },
     [](const DaemonConfig& c) { return ValueText(c.grpc); }},
    {"listen.http", "ADDR:PORT",
     "Where /metrics, /livez, /readyz and /api/v1 are served, unencrypted and for reading only.",
     [](const ConfigValue& v, DaemonConfig* c) { return SetAddress(v, false, &c->http); },
     [](const DaemonConfig& c) { return ValueText(c.http); }},
    {"listen.unix", "\"auto\", \"none\" or the path of a socket",
     "A second address on a Unix socket. auto: eplbd.sock in $RUNTIME_DIRECTORY, else in "
     "/run/eplb, else in $XDG_RUNTIME_DIR/eplb.",
     SetUnixSocket, [](const DaemonConfig& c) { return c.unix_socket; }},
    {"listen.unix_access", "\"owner\" or \"group\"",
     "Who may connect to a Unix socket of the daemon: its user alone, or its group as well.",
     SetUnixAccess,
     [](const DaemonConfig& c) {
       return std::string(c.unix_socket_for_group ? "group" : "owner");
     }},
    {"http.allowed_hosts", "at most 64 host names, an array or separated by commas",
     "Names that an HTTP request may carry in Host, besides IP addresses and localhost; list a "
     "proxy's name here.",
     [](const ConfigValue& v, DaemonConfig* c) { return SetHostNames(v, &c->http_allowed_hosts); },
     [](const DaemonConfig& c) { return ValueText(c.http_allowed_hosts); }},
    {"policy.name", "", "The algorithm that computes placements.", SetPolicyName,
     [](const DaemonConfig& c) { return ValueText(c.core.policy_name); }},
    {"policy.mode", "\"apply\" or \"observe\"",
     "apply: propose each placement that pays; observe: decide, explain and price, and propose "
     "nothing.",
     SetMode,
     [](const DaemonConfig& c) { return std::string(c.core.observe ? "observe" : "apply"); }},
    {"policy.every_steps", "an integer in 1..2147483647",
     "Least number of training steps between two decisions of a job.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, kMaxInt32, &c->core.policy_every_steps);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.policy_every_steps); }},
    {"policy.min_gain", "a number in 0..1",
     "Least predicted fall of the summed peak GPU load that a new placement must bring, as a "
     "fraction.",
     [](const ConfigValue& v, DaemonConfig* c) { return SetReal(v, 0, 1, &c->core.min_gain); },
     [](const DaemonConfig& c) { return ValueText(c.core.min_gain); }},
    {"policy.freeze_steps", "\"A:B\" with 0 <= A <= B, or \"\"",
     "Training steps, both included, in which nothing is decided, for example a warm-up.",
     SetFreezeSteps, [](const DaemonConfig& c) { return FreezeText(c); }},
    {"report.min_coverage", "a number in 0.01..1",
     "Share of a job's reporting ranks whose counts a load window needs before it is used.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetReal(v, 0.01, 1, &c->core.min_coverage);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.min_coverage); }},
    {"migration.layers_per_chunk", "an integer in 1..1048576",
     "Most layers that one boundary of the training switches together.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1 << 20, &c->core.layers_per_chunk);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.layers_per_chunk); }},
    {"policy.horizon_steps", "an integer in 1..2147483647",
     "With prices: most steps over which the saving of a new placement is counted.",
     [](const ConfigValue& v, DaemonConfig* c) {
       const std::optional<int64_t> steps = Integer(v, 1, kMaxInt32);
       if (steps) c->core.costs.horizon_steps = *steps;
       return steps.has_value();
     },
     [](const DaemonConfig& c) { return ValueText(c.core.costs.horizon_steps); }},
    {"cost.token_ns", "a number in 0..1e9; 0: not known",
     "Price of a token on the fullest GPU, forward and backward; without it only policy.min_gain "
     "decides.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetScaled(v, 0, 1e9, 1e-9, &c->core.costs.token_seconds);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.costs.token_seconds * 1e9); }},
    {"cost.intra_gbps", kBandwidthExpected,
     "Bandwidth of one GPU to the GPUs of its node, in one direction.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetBandwidth(v, &c->core.costs.intra_bytes_per_s);
     },
     [](const DaemonConfig& c) { return BandwidthText(c.core.costs.intra_bytes_per_s); }},
    {"cost.inter_gbps", kBandwidthExpected,
     "Bandwidth of one GPU to other nodes, in one direction.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetBandwidth(v, &c->core.costs.inter_bytes_per_s);
     },
     [](const DaemonConfig& c) { return BandwidthText(c.core.costs.inter_bytes_per_s); }},
    {"cost.stall", "a duration such as \"50ms\" in 0s..1h",
     "Time that a migration costs besides the transfer of its bytes.",
     [](const ConfigValue& v, DaemonConfig* c) {
       absl::Duration stall;
       if (!SetDuration(v, absl::ZeroDuration(), absl::Hours(1), &stall)) return false;
       c->core.costs.stall_seconds = absl::ToDoubleSeconds(stall);
       return true;
     },
     [](const DaemonConfig& c) { return ValueText(absl::Seconds(c.core.costs.stall_seconds)); }},
    {"cost.gradient_bytes", "an integer in 0..1125899906842624",
     "Gradient bytes of one expert; above 0 a replica on another GPU is charged weights and "
     "gradients each step.",
     [](const ConfigValue& v, DaemonConfig* c) {
       const std::optional<int64_t> bytes = Integer(v, 0, int64_t{1} << 50);
       if (bytes) c->core.costs.replica_gradient_bytes = *bytes;
       return bytes.has_value();
     },
     [](const DaemonConfig& c) { return ValueText(c.core.costs.replica_gradient_bytes); }},
    {"report.every_steps", "an integer in 1..1048576",
     "Steps in a load window. A run begins with the report_every of its ranks and takes this "
     "length a few windows later.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1 << 20, &c->core.report_every_steps);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.report_every_steps); }},
    {"vote.every_steps", "an integer in 0..1048576; 0: not compared",
     "The vote_every that jobs are expected to choose. A job's own choice holds; a difference is "
     "recorded as an event.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 0, 1 << 20, &c->core.vote_every_steps);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.vote_every_steps); }},
    {"migration.max_pause", "a duration such as \"200ms\" in 1ms..1h",
     "Longest predicted pause at one boundary: fewer layers are switched together, and a layer "
     "that exceeds it alone stays.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Milliseconds(1), absl::Hours(1), &c->core.max_pause);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_pause); }},
    {"store.path", "a path, or \"memory\"",
     "The database with terms, placements, decisions and the audit log; \"memory\" keeps nothing "
     "after the end.",
     [](const ConfigValue& v, DaemonConfig* c) { return SetPath(v, &c->store_path); },
     [](const DaemonConfig& c) { return c.store_path; }},
    {"tls.cert", "the path of a PEM file",
     "The daemon's certificate, with the certificates between it and the CA; a renewed file is "
     "used without a restart.",
     [](const ConfigValue& v, DaemonConfig* c) { return SetPath(v, &c->tls.cert); },
     [](const DaemonConfig& c) { return c.tls.cert; }},
    {"tls.key", "the path of a PEM file", "The private key of tls.cert.",
     [](const ConfigValue& v, DaemonConfig* c) { return SetPath(v, &c->tls.key); },
     [](const DaemonConfig& c) { return c.tls.key; }},
    {"tls.ca", "the path of a PEM file",
     "The certificates of those who sign the peers' certificates.",
     [](const ConfigValue& v, DaemonConfig* c) { return SetPath(v, &c->tls.ca); },
     [](const DaemonConfig& c) { return c.tls.ca; }},
    {"tls.identity", "a table of rules in the configuration file",
     "Which certificate is a rank, a viewer or an operator, and of which jobs; without a rule "
     "nobody is let in.",
     [](const ConfigValue&, DaemonConfig*) { return false; },
     [](const DaemonConfig&) { return std::string(); }},
    {"drain.grace", "a duration such as \"10s\" in 0s..10m",
     "Time that SIGTERM leaves to ranks and calls before what is left is cut.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::ZeroDuration(), absl::Minutes(10), &c->drain_grace);
     },
     [](const DaemonConfig& c) { return ValueText(c.drain_grace); }},
    {"log.format", "\"auto\", \"json\" or \"text\"",
     "One JSON object a line, or text for people; auto: text where stderr is a terminal.",
     [](const ConfigValue& v, DaemonConfig* c) {
       c->log_format = v.text;
       return v.text == "auto" || v.text == "json" || v.text == "text";
     },
     [](const DaemonConfig& c) { return c.log_format; }},
    {"log.level", "\"debug\", \"info\", \"warn\" or \"error\"",
     "The least severe lines that the log has.",
     [](const ConfigValue& v, DaemonConfig* c) {
       c->log_level = v.text;
       return v.text == "debug" || v.text == "info" || v.text == "warn" || v.text == "error";
     },
     [](const DaemonConfig& c) { return c.log_level; }},
    {"limits.max_jobs", "an integer in 1..100000",
     "Most jobs that are known at once; one more is refused while all have ranks.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 100000, &c->core.max_jobs);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_jobs); }},
    {"limits.max_ranks_per_job", "an integer in 1..1000000",
     "Most ranks of one job; a larger job is refused.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->core.max_ranks_per_job);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_ranks_per_job); }},
    {"limits.max_pending_windows", "an integer in 1..1000",
     "Most load windows per job that still wait for ranks; the oldest is dropped first.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000, &c->core.max_pending_windows);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_pending_windows); }},
    {"limits.max_windows", "an integer in 1..10000",
     "Most complete load windows kept per job in memory.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 10000, &c->core.max_windows);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.max_windows); }},
    {"limits.session_grace", "a duration such as \"10s\" in 0s..1h",
     "Time that a rank may be away before its run has ended.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::ZeroDuration(), absl::Hours(1), &c->core.session_grace);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.session_grace); }},
    {"limits.job_expiry", "a duration such as \"24h\" in 1s..8760h",
     "A job without a rank is forgotten then, unless somebody stopped it.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(8760), &c->core.job_expiry);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.job_expiry); }},
    {"limits.max_history", "an integer in 1..100000",
     "Most placements kept per job, to read and to roll back to.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 100000, &c->limits.max_history);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_history); }},
    {"limits.solver_threads", "an integer in 1..64",
     "Threads that compute placements, each of another job; one thread serves jobs by turns.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 64, &c->limits.solver_threads);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.solver_threads); }},
    {"limits.solve_deadline", "a duration such as \"60s\" in 1s..1h",
     "Longest computation of a policy, which is then abandoned; five times this is the longest "
     "wait "
     "for the computation to begin.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(1), &c->core.solve_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.solve_deadline); }},
    {"limits.prepare_deadline", "a duration such as \"60s\" in 1s..1h",
     "Longest wait for all ranks to prepare a proposal before it is withdrawn.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(1), &c->core.prepare_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.prepare_deadline); }},
    {"limits.voting_deadline", "a duration such as \"660s\" in 1s..24h",
     "Longest wait for the outcome of a prepared proposal; keep it above the ranks' own deadline "
     "of a vote, 600 s.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(24), &c->core.voting_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.voting_deadline); }},
    {"limits.cancel_deadline", "a duration such as \"60s\" in 1s..1h",
     "Longest wait for the ranks to confirm that a proposal is withdrawn.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Seconds(1), absl::Hours(1), &c->core.cancel_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.core.cancel_deadline); }},
    {"limits.max_sessions", "an integer in 1..1000000",
     "Most open streams of ranks, all jobs together.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->limits.max_sessions);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_sessions); }},
    {"limits.max_queued_events", "an integer in 16..1000000",
     "Most messages that wait for the daemon's core; reports beyond it are dropped and counted.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 16, 1000000, &c->limits.max_queued_events);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_queued_events); }},
    {"limits.max_queued_mib", "an integer in 1..65536",
     "Most MiB of load reports that wait for the daemon's core; reports beyond it are dropped and "
     "counted.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 65536, &c->limits.max_queued_mib);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_queued_mib); }},
    {"limits.max_window_mib", "an integer in 1..1048576",
     "Most MiB of the load windows of all jobs; the job that holds most loses its oldest first, "
     "but "
     "each keeps two.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1048576, &c->limits.max_window_mib);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_window_mib); }},
    {"limits.messages_per_second", "an integer in 1..1000000",
     "Most messages a second from one rank on average, twice that in a burst.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->limits.messages_per_second);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.messages_per_second); }},
    {"limits.max_all_gather_mib", "an integer in 1..65536",
     "Most MiB of the bytes that starting ranks all-gather, all jobs together.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 65536, &c->limits.max_all_gather_mib);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_all_gather_mib); }},
    {"limits.max_sessions_per_peer", "an integer in 1..1000000",
     "Most open streams of ranks from one address.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->limits.max_sessions_per_peer);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_sessions_per_peer); }},
    {"limits.calls_per_second", "an integer in 1..1000000",
     "Most calls a second from one address, besides streams; twice that in a burst.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 1000000, &c->limits.calls_per_second);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.calls_per_second); }},
    {"limits.max_streams_per_connection", "an integer in 1..100000",
     "Most calls at work on one connection.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 1, 100000, &c->limits.max_streams_per_connection);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_streams_per_connection); }},
    {"limits.max_rpc_memory_mib", "an integer in 64..1048576",
     "Most MiB of gRPC's buffers, all connections together.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetInteger(v, 64, 1 << 20, &c->limits.max_rpc_memory_mib);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.max_rpc_memory_mib); }},
    {"limits.handshake_deadline", "a duration such as \"10s\" in 100ms..1m",
     "Longest time from a connection's start to the end of its TLS and HTTP/2 handshake.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Milliseconds(100), absl::Minutes(1),
                          &c->limits.handshake_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.handshake_deadline); }},
    {"limits.start_deadline", "a duration such as \"60s\" in 100ms..1h",
     "Longest wait for all ranks of a job to join an all-gather of bytes.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Milliseconds(100), absl::Hours(1), &c->limits.start_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.start_deadline); }},
    {"limits.hello_deadline", "a duration such as \"10s\" in 100ms..1h",
     "Longest wait for the first message of a new stream.",
     [](const ConfigValue& v, DaemonConfig* c) {
       return SetDuration(v, absl::Milliseconds(100), absl::Hours(1), &c->limits.hello_deadline);
     },
     [](const DaemonConfig& c) { return ValueText(c.limits.hello_deadline); }},
};

constexpr bool EveryKeyIsExplained() {
  for (const ConfigKey& key : kKeys) {
    if (key.help.empty() || key.help.back() != '.') return false;
  }
  return true;
}
static_assert(EveryKeyIsExplained(), "each key has a sentence that says what it does");

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

absl::Status SetConfigKeyFrom(const std::string& source, std::string_view name,
                              const ConfigValue& value, DaemonConfig* config) {
  EPLB_RETURN_IF_ERROR(SetConfigKey(name, value, config));
  config->origins[std::string(name)] = {.source = source, .given = value.text};
  return absl::OkStatus();
}

}  // namespace eplb
