#include "server/daemon.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "base/tls_files.h"
#include "server/http/http_server.h"
#include "server/http/job_json.h"
#include "server/process/log.h"
#include "server/rpc/grpc_version.h"
#include "server/rpc/rpc_server.h"
#include "server/runner/runner.h"
#include "server/store/store.h"

namespace eplb {

namespace {

constexpr int64_t kMostDescriptors = std::numeric_limits<int32_t>::max();
// Log, store with its journal, listeners, event queues of gRPC: 17 were counted.
constexpr int64_t kOwn = 24;
// Connections of queries and operators: over TCP beside the ranks', over the Unix socket also when
// those take all of theirs.
constexpr int64_t kQueries = 16;
constexpr int64_t kLeastHttp = 4;
constexpr int64_t kMostHttp = 256;
constexpr int64_t kHttpPart = 64;  // one of so many descriptors, four times
constexpr int64_t kHttpThreads = 8;

// See HttpServer::Start: connections at each of the four stages, watchers, and those in a thread's
// hands.
int64_t HttpShare(int64_t connections) { return 4 * connections + connections / 4 + kHttpThreads; }

}  // namespace

int64_t DescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostDescriptors;
  return static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, kMostDescriptors));
}

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
  }
  return DescriptorLimit();
}

DescriptorPlan PlanDescriptors(int64_t limit, int32_t wanted) {
  DescriptorPlan plan;
  const int64_t http = std::clamp(limit / kHttpPart, kLeastHttp, kMostHttp);
  plan.http_connections = static_cast<size_t>(http);
  plan.unix_below = static_cast<int32_t>(std::max<int64_t>(limit - HttpShare(http), kOwn + 1));
  plan.tcp_below = static_cast<int32_t>(std::max<int64_t>(plan.unix_below - kQueries, kOwn + 1));
  const int64_t fit = std::max<int64_t>(limit - HttpShare(http) - kQueries - kOwn, 1);
  plan.max_sessions = static_cast<int32_t>(std::min<int64_t>(wanted, fit));
  if (fit >= wanted) {
    plan.no_more_sessions = absl::StrCat("limits.max_sessions = ", wanted, " streams are open");
    return plan;
  }
  plan.no_more_sessions =
      absl::StrCat(fit, " streams are open, and the daemon's limit of ", limit,
                   " open files has room for no more; limits.max_sessions is ", wanted);
  plan.warning = absl::StrCat(
      "limits.max_sessions is ", wanted, ", but the limit of ", limit, " open files has room for ",
      fit, " streams: raise the limit to ", wanted + HttpShare(kMostHttp) + kQueries + kOwn,
      " (LimitNOFILE= of the service, ulimit -Hn) or lower limits.max_sessions");
  return plan;
}

namespace {

absl::StatusOr<wire::PlacementBody> PlacementOf(const Runner& runner, const std::string& job,
                                                std::optional<int64_t> version) {
  return version ? runner.PlacementOf(job, *version) : runner.PlacementInForce(job);
}

std::vector<RefusedRanks> RefusalsOf(const Runner& runner) {
  const absl::Time now = MonotonicNow();
  std::vector<RefusedRanks> refusals;
  for (core::RefusedJob& one : runner.Refusals()) {
    const absl::Duration ago = now - one.at;
    refusals.push_back({.job = std::move(one), .ago = ago});
  }
  return refusals;
}

}  // namespace

MetricsSnapshot TakeSnapshot(const Observed& observed) {
  const Runner& runner = *observed.runner;
  MetricsSnapshot snapshot;
  snapshot.version = observed.version;
  snapshot.grpc_version = GrpcVersion();
  snapshot.ready = runner.Readiness().ok();
  snapshot.draining = observed.rpc->draining();
  snapshot.term = runner.term();
  snapshot.sessions = runner.sessions().count();
  snapshot.reports_dropped = {{"queue", runner.dropped_reports()},
                              {"stream", runner.limited_reports()},
                              {"ahead", runner.Counters().core.reports_ahead}};
  for (int kind = 0; kind < kNumRefusals; ++kind) {
    const auto refusal = static_cast<Refusal>(kind);
    snapshot.refusals_by_kind.emplace_back(NameOf(refusal), observed.rpc->refusals(refusal));
  }
  snapshot.refusals_by_kind.emplace_back("rank", runner.Counters().core.refused);
  const StreamEnds ends = observed.rpc->stream_ends();
  snapshot.session_disconnects_by_reason = {
      {"goodbye", ends.goodbye}, {"closed", ends.closed}, {"lost", ends.lost}};
  for (RpcTimes::Series& series : observed.rpc->rpc_times()) {
    snapshot.calls.push_back({std::move(series.method), std::move(series.code), series.seconds});
  }
  snapshot.jobs = runner.Jobs();
  snapshot.refused_jobs = runner.Refusals();
  snapshot.per_expert = observed.per_expert;
  if (observed.per_expert) {
    for (const core::JobView& job : snapshot.jobs) {
      absl::StatusOr<core::WindowView> window = runner.NewestWindow(job.job);
      if (window.ok()) snapshot.expert_tokens.push_back({job.job, *std::move(window)});
    }
  }
  const RunnerCounters counters = runner.Counters();
  snapshot.counters = counters.core;
  snapshot.queued_events = counters.queued_events;
  snapshot.window_bytes = counters.window_bytes;
  snapshot.longest_hold_seconds = absl::ToDoubleSeconds(counters.longest_hold);
  snapshot.solve_seconds = runner.solve_seconds();
  snapshot.store_write_seconds = runner.store_write_seconds();
  snapshot.store_errors = runner.store_errors();
  if (!observed.tls_cert.empty()) {
    const absl::StatusOr<absl::Time> expiry = wire::CertificateExpiry(observed.tls_cert);
    if (expiry.ok()) snapshot.tls_cert_expiry = *expiry;
  }
  snapshot.process = ReadProcessFigures();
  return snapshot;
}

HttpServer::Sources SourcesOf(const Observed& observed) {
  const Runner* runner = observed.runner;
  return {
      .alive = [runner] { return runner->Alive(); },
      .ready = [runner] { return runner->Readiness(); },
      .metrics =
          [observed](const HttpFailures& http) {
            MetricsSnapshot snapshot = TakeSnapshot(observed);
            snapshot.http = http;
            return MetricsText(snapshot);
          },
      .version = [version = observed.version] { return VersionToJson(version, GrpcVersion()); },
      .api =
          {
              .jobs = [runner] { return runner->Jobs(); },
              .refusals = [runner] { return RefusalsOf(*runner); },
              .warnings = [runner] { return runner->Warnings(); },
              .job = [runner](const std::string& job) { return runner->Job(job); },
              .placement =
                  [runner](const std::string& job, std::optional<int64_t> version) {
                    return PlacementOf(*runner, job, version);
                  },
              .load = [runner](const std::string& job) { return runner->NewestWindow(job); },
              .windows = [runner](const std::string& job, int64_t after,
                                  int32_t limit) { return runner->Windows(job, after, limit); },
              .window_loads =
                  [runner](const std::string& job, std::optional<int64_t> window) {
                    return runner->LoadsOf(job, window);
                  },
              .traffic = [runner](
                             const std::string& job,
                             std::optional<int64_t> plan) { return runner->TrafficOf(job, plan); },
              .plans = [runner](const std::string& job,
                                int32_t limit) { return runner->Plans(job, limit); },
              .plan = [runner](const std::string& job,
                               int64_t number) { return runner->OnePlan(job, number); },
              .events = [runner](const std::string& job, int64_t after,
                                 int32_t limit) { return runner->Events(job, limit, after); },
          },
      .streams = {.events = [runner](std::optional<int64_t> after,
                                     int32_t limit) { return runner->EventsOfAll(after, limit); },
                  .jobs = [runner] { return runner->Jobs(); }}};
}

namespace {

constexpr size_t kMiB = size_t{1} << 20;

RunnerOptions RunnerOptionsOf(const DaemonConfig& config, const DescriptorPlan& descriptors,
                              const Store& store) {
  RunnerOptions options;
  options.core = config.core;
  options.core.server_version = DaemonVersion();
  options.core.gather_deadline = config.limits.start_deadline;
  options.core.max_window_bytes = static_cast<int64_t>(kMiB) * config.limits.max_window_mib;
  options.queue = {.max_events = static_cast<size_t>(config.limits.max_queued_events),
                   .max_bytes = kMiB * static_cast<size_t>(config.limits.max_queued_mib)};
  options.sessions = {.max_sessions = descriptors.max_sessions,
                      .no_more = descriptors.no_more_sessions,
                      .hello_deadline = config.limits.hello_deadline};
  options.room_warning = descriptors.warning;
  options.opening_note = store.opening_note();
  options.history.max_load_bytes = static_cast<int64_t>(kMiB) * config.limits.max_past_loads_mib;
  options.solver_threads = config.limits.solver_threads;
  return options;
}

// Not of etcd: that one is opened by the daemon that leads.
absl::StatusOr<std::unique_ptr<Store>> OpenStore(const DaemonConfig& config) {
  const StoreLimits limits{.max_history = config.limits.max_history};
  if (StoreBackendOf(config) == kMemoryBackend) return MakeMemoryStore(limits);
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<Store> store, MakeSqliteStore(config.store_path, limits));
  if (!store->opening_note().empty()) {
    Log(LogLevel::kError, "store_moved_aside", {{"reason", store->opening_note()}});
  }
  return store;
}

}  // namespace

Daemon::Daemon() = default;

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const DaemonConfig& config,
                                                      std::unique_ptr<Store> store) {
  const bool elected = store != nullptr;
  if (!elected) {
    EPLB_ASSIGN_OR_RETURN(store, OpenStore(config));
  }
  auto daemon = std::unique_ptr<Daemon>(new Daemon());
  const DescriptorPlan descriptors = PlanDescriptors(DescriptorLimit(), config.limits.max_sessions);
  if (!descriptors.warning.empty()) {
    Log(LogLevel::kWarn, "descriptors_short", {{"reason", descriptors.warning}});
  }
  RunnerOptions options = RunnerOptionsOf(config, descriptors, *store);
  options.core.elected = elected;
  EPLB_ASSIGN_OR_RETURN(daemon->runner_, Runner::Start(std::move(options), std::move(store)));
  Runner* runner = daemon->runner_.get();
  EPLB_ASSIGN_OR_RETURN(
      daemon->rpc_,
      RpcServer::Start(
          {.listen = config.grpc,
           .unix_socket = config.unix_socket == kNoSocket ? "" : config.unix_socket,
           .unix_socket_optional = config.unix_socket_optional,
           .unix_socket_for_group = config.unix_socket_for_group,
           .runner = runner,
           .messages_per_second = config.limits.messages_per_second,
           .rendezvous = {.deadline = config.limits.start_deadline,
                          .max_bytes = kMiB * static_cast<size_t>(config.limits.max_all_gather_mib),
                          .max_world_size = config.core.max_ranks_per_job},
           .tls = config.tls,
           .peers = {.max_sessions = config.limits.max_sessions_per_peer,
                     .calls_per_second = config.limits.calls_per_second},
           .max_streams_per_connection = config.limits.max_streams_per_connection,
           .max_memory_bytes = kMiB * static_cast<size_t>(config.limits.max_rpc_memory_mib),
           .handshake_deadline = config.limits.handshake_deadline,
           .tcp_below = descriptors.tcp_below,
           .unix_below = descriptors.unix_below,
           .server_version = DaemonVersion(),
           .store = StoreBackendOf(config),
           .leader = elected ? AdvertisedAddress(config) : ""}));
  EPLB_ASSIGN_OR_RETURN(daemon->http_,
                        HttpServer::Start(config.http,
                                          SourcesOf({.runner = runner,
                                                     .rpc = daemon->rpc_.get(),
                                                     .tls_cert = config.tls.cert,
                                                     .per_expert = config.metrics_per_expert,
                                                     .version = DaemonVersion()}),
                                          config.http_allowed_hosts, descriptors.http_connections));
  return daemon;
}

Daemon::~Daemon() {
  if (runner_ != nullptr) Shutdown(absl::ZeroDuration());
}

const Address& Daemon::grpc_address() const { return rpc_->address(); }
const Address& Daemon::http_address() const { return http_->address(); }
const std::string& Daemon::unix_socket() const { return rpc_->unix_socket(); }
int32_t Daemon::open_sessions() const { return runner_->sessions().count(); }
int64_t Daemon::streams_seen() const {
  const StreamEnds ends = rpc_->stream_ends();
  int64_t seen = ends.goodbye + ends.closed + ends.lost + open_sessions();
  for (int kind = 0; kind < kNumRefusals; ++kind) seen += rpc_->refusals(Refusal{kind});
  return seen + runner_->Counters().core.refused;
}
absl::Status Daemon::Alive() const { return runner_->Alive(); }

void Daemon::BeginDrain(absl::Duration grace) {
  (void)runner_->Push(core::DrainRequested{.grace = grace});
  rpc_->StopServing();
}

void Daemon::Shutdown(absl::Duration grace) {
  http_.reset();
  if (rpc_ != nullptr) rpc_->Shutdown(grace);
  rpc_.reset();
  runner_->Stop();
}

std::string DaemonVersion() { return EPLB_VERSION; }

}  // namespace eplb
