// Starts the parts of the daemon in their order, and ends them in the reverse one.
#include "server/daemon.h"

#include <utility>

#include "base/status_macros.h"
#include "server/descriptor_plan.h"
#include "server/http/http_server.h"
#include "server/observed.h"
#include "server/process/log.h"
#include "server/rpc/rpc_server.h"
#include "server/runner/runner.h"

namespace eplb {

namespace {

constexpr size_t kMiB = size_t{1} << 20;

RunnerOptions RunnerOptionsOf(const DaemonConfig& config, const DescriptorPlan& descriptors,
                              const Store& store) {
  const v1::Configuration::Limits& limits = config.keys.limits();
  RunnerOptions options;
  options.core = core::Config(config.keys);
  options.core.server_version = DaemonVersion();
  options.queue = {.max_events = static_cast<size_t>(limits.max_queued_events()),
                   .max_bytes = kMiB * static_cast<size_t>(limits.max_queued_mib())};
  options.sessions = {.max_sessions = descriptors.max_sessions,
                      .no_more = descriptors.no_more_sessions,
                      .hello_deadline = absl::Seconds(limits.hello_deadline_seconds())};
  options.room_warning = descriptors.warning;
  options.opening_note = store.opening_note();
  options.history.max_load_bytes = static_cast<int64_t>(kMiB) * limits.max_past_loads_mib();
  options.max_plan_questions = limits.max_plan_questions();
  options.solver_threads = limits.solver_threads();
  return options;
}

// Not of etcd: that one is opened by the daemon that leads.
absl::StatusOr<std::unique_ptr<Store>> OpenStore(const DaemonConfig& config) {
  const StoreLimits limits{.max_history = config.keys.limits().max_history()};
  if (StoreBackendOf(config) == kMemoryBackend) return MakeMemoryStore(limits);
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<Store> store,
                        MakeSqliteStore(config.keys.store().path(), limits));
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
  const v1::Configuration::Listen& listen = config.keys.listen();
  const v1::Configuration::Limits& limits = config.keys.limits();
  const DescriptorPlan descriptors = PlanDescriptors(DescriptorLimit(), limits.max_sessions());
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
          {.listen = config.grpc(),
           .unix_socket = listen.unix() == kNoSocket ? "" : listen.unix(),
           .unix_socket_optional = config.unix_socket_optional,
           .unix_socket_for_group = listen.unix_access() == "group",
           .runner = runner,
           .messages_per_second = limits.messages_per_second(),
           .rendezvous = {.deadline = absl::Seconds(limits.start_deadline_seconds()),
                          .max_bytes = kMiB * static_cast<size_t>(limits.max_all_gather_mib()),
                          .max_world_size = limits.max_ranks_per_job()},
           .tls = config.tls(),
           .peers = {.max_sessions = limits.max_sessions_per_peer(),
                     .calls_per_second = limits.calls_per_second()},
           .max_streams_per_connection = limits.max_streams_per_connection(),
           .max_memory_bytes = kMiB * static_cast<size_t>(limits.max_rpc_memory_mib()),
           .handshake_deadline = absl::Seconds(limits.handshake_deadline_seconds()),
           .tcp_below = descriptors.tcp_below,
           .unix_below = descriptors.unix_below,
           .server_version = DaemonVersion(),
           .store = StoreBackendOf(config),
           .leader = elected ? AdvertisedAddress(config) : ""}));
  EPLB_ASSIGN_OR_RETURN(
      daemon->http_, HttpServer::Start(config.http(),
                                       SourcesOf({.runner = runner,
                                                  .rpc = daemon->rpc_.get(),
                                                  .tls_cert = config.keys.tls().cert(),
                                                  .per_expert = config.keys.metrics().per_expert(),
                                                  .version = DaemonVersion()}),
                                       config.allowed_hosts(), descriptors.http_connections));
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
