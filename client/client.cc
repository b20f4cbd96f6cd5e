#include "client/client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "client/client_impl.h"
#include "client/files/placement_file.h"
#include "client/forks.h"
#include "client/inproc.h"
#include "client/migration/device_transports.h"
#include "client/options.h"
#include "client/session/daemon_exchange.h"
#include "client/session/log_line.h"
#include "client/start.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

uint64_t DrawNonce() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

absl::Status OpenFiles(const ClientOptions& options, ClientParts& parts) {
  if (!options.history_path.empty()) {
    EPLB_ASSIGN_OR_RETURN(parts.history, LineFile::Open(options.history_path));
  }
  if (options.rank == 0 && !options.placements_path.empty()) {
    EPLB_ASSIGN_OR_RETURN(parts.placements, LineFile::Open(options.placements_path));
  }
  return absl::OkStatus();
}

// Everything up to the control channel.
absl::StatusOr<ClientParts> Start(ClientOptions options, Exchange exchange, bool inproc) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, CheckOptions(options, inproc));
  EPLB_ASSIGN_OR_RETURN(const NcclSettings nccl, NcclSettingsOf(options.nccl));
  ClientParts parts{.options = std::move(options),
                    .topology = topology,
                    .exchange = std::move(exchange),
                    .disabled = DisabledByEnvironment(),
                    .nccl = nccl};
  absl::Status own = parts.disabled ? absl::OkStatus() : OpenFiles(parts.options, parts);
  if (!parts.disabled && !parts.options.endpoint.empty()) own.Update(EnterGrpc());
  EPLB_ASSIGN_OR_RETURN(parts.start,
                        StartJob(parts.options, topology, parts.disabled, own, parts.exchange));
  EPLB_RETURN_IF_ERROR(parts.placements.Clear());  // after an initial placement was read from it
  return parts;
}

}  // namespace

struct ClientFactory {
  static std::unique_ptr<Client> Make(ClientParts parts) {
    return std::unique_ptr<Client>(new Client(std::make_unique<Client::Impl>(std::move(parts))));
  }
  static Client::Impl& ImplOf(Client& client) { return *client.impl_; }
};

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options, Exchange exchange) {
  EPLB_ASSIGN_OR_RETURN(ClientParts parts,
                        Start(std::move(options), std::move(exchange), /*inproc=*/false));
  if (!parts.disabled) {
    const TcpControlOptions control = {.rank = RankId{parts.options.rank},
                                       .world_size = parts.options.world_size,
                                       .bind_address = parts.options.bind_address,
                                       .secret = parts.start.secret,
                                       .connect_timeout = parts.options.start_deadline};
    EPLB_ASSIGN_OR_RETURN(parts.control, MakeTcpControlChannel(control, parts.exchange));
  }
  return ClientFactory::Make(std::move(parts));
}

absl::StatusOr<std::unique_ptr<Client>> ConnectInproc(ClientOptions options, Exchange exchange,
                                                      std::unique_ptr<ControlChannel> control,
                                                      std::unique_ptr<Transport> transport) {
  EPLB_ASSIGN_OR_RETURN(ClientParts parts,
                        Start(std::move(options), std::move(exchange), /*inproc=*/true));
  parts.control = std::move(control);
  parts.transport = std::move(transport);
  return ClientFactory::Make(std::move(parts));
}

void TellInproc(Client& client, const wire::DownMessage& message) {
  ClientFactory::ImplOf(client).Tell(message);
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() {
  // The child has none of the threads and connections that the members would end.
  if (impl_->birthplace().IsElsewhereQuietly()) (void)impl_.release();
}

bool Client::IsForkedCopy() const { return impl_->birthplace().IsElsewhere(); }

absl::Status Client::RegisterExperts(std::span<const ExpertTensorView> tensors) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->Register(tensors);
}

absl::Status Client::CheckExperts(const ExpertProbe& probe, void* stream) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->CheckExperts(probe, stream);
}

absl::Status Client::ReduceGradients(std::span<const ReplicaRows> gradients, StatePlacement sums,
                                     void* stream) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->ReduceGradients(gradients, sums, stream);
}

absl::Status Client::BroadcastWeights(std::span<const ReplicaRows> weights, void* stream) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->BroadcastWeights(weights, stream);
}

absl::StatusOr<std::vector<double>> Client::ExpertSquares(std::span<const ReplicaRows> gradients,
                                                          void* stream) {
  if (IsForkedCopy()) {
    const PlacementView& view = placement();
    return std::vector<double>(static_cast<size_t>(view.num_layers) *
                               static_cast<size_t>(view.num_experts));
  }
  return impl_->SumExpertSquares(gradients, stream);
}

absl::Status Client::Record(int32_t layer, std::span<const int64_t> counts) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->Record(layer, counts);
}

absl::StatusOr<BoundaryResult> Client::StepBoundary(int64_t step, void* stream) {
  if (IsForkedCopy()) return BoundaryResult{};
  return impl_->StepBoundary(step, stream);
}

const PlacementView& Client::placement() const { return impl_->view(); }
const DeviceTables& Client::device_tables() const { return impl_->device_tables(); }
std::string_view Client::transport() const { return impl_->transport(); }
ClientStats Client::stats() const { return IsForkedCopy() ? ClientStats{} : impl_->Stats(); }
const std::string& Client::incarnation() const { return impl_->incarnation(); }
void Client::Close(std::string_view reason) {
  if (!IsForkedCopy()) impl_->Close(reason);
}

Client::Impl::Impl(ClientParts parts)
    : options_(std::move(parts.options)),
      topology_(parts.topology),
      exchange_(std::move(parts.exchange)),
      disabled_(parts.disabled),
      reports_(Reports(options_)),
      nccl_(parts.nccl),
      incarnation_(std::move(parts.start.incarnation)),
      secret_(std::move(parts.start.secret)),
      running_(std::move(parts.start.running)),
      tables_(running_, gpu()),
      placements_(std::move(parts.placements)),
      log_(std::move(parts.history), options_.rank, incarnation_),
      windows_(options_.num_layers, options_.num_experts, options_.report_every,
               options_.first_step),
      control_(std::move(parts.control)),
      transport_(std::move(parts.transport)),
      next_step_(options_.first_step) {
  log_.Write({.event = "start",
              .step = options_.first_step,
              .last_step = options_.first_step,
              .version = running_.version,
              .digest = running_.digest});
  WritePlacement(options_.first_step, nullptr);
}

Client::Impl::~Impl() {
  Close("destroyed without Close");
  if (executor_ == nullptr || executor_->may_vote()) return;
  // A write of ours has not ended: what it may use is never freed, and to free any memory of the
  // GPU would wait for it.
  (void)expert_squares_.release();
  (void)executor_.release();
  (void)route_tables_.release();
}

GpuId Client::Impl::gpu() const { return GpuId{options_.rank % options_.num_gpus}; }

ExecutorOptions Client::Impl::MakeExecutorOptions() const {
  return {.topology = topology_,
          .gpu = gpu(),
          .lane = options_.rank / options_.num_gpus,
          .state_residency = options_.state_placement == StatePlacement::kWithPrimary
                                 ? StateResidency::kWithPrimary
                                 : StateResidency::kEveryReplica,
          .layers_per_chunk = options_.layers_per_chunk};
}

RowMoverOptions Client::Impl::MakeRowMoverOptions(const JobNeeds& needs) const {
  RowMoverOptions options{.transport = {.rank = RankId{options_.rank},
                                        .world_size = options_.world_size,
                                        .staging_bytes = needs.staging_bytes,
                                        .bind_address = options_.bind_address,
                                        .secret = secret_,
                                        .connect_timeout = options_.start_deadline},
                          .name = options_.transport,
                          .memory = needs.memory,
                          .lane = {},
                          .nccl = nccl_};
  const int32_t first = options_.rank - gpu().value;
  for (int32_t rank = first; rank < first + options_.num_gpus; ++rank) {
    options.lane.push_back(RankId{rank});
  }
  options.transport.peers = options.lane;
  // Every rank learns the same reasons.
  if (options_.rank == 0) options.transport.on_note = &LogLine;
  return options;
}

absl::StatusOr<JobNeeds> Client::Impl::CompareTensors(
    const absl::StatusOr<RegisteredTensors>& registered) const {
  const absl::StatusOr<TensorNeeds> needs = registered.ok()
                                                ? NeedsOf(*registered, MakeExecutorOptions())
                                                : absl::StatusOr<TensorNeeds>(registered.status());
  const StartRound round{.what = "tensors",
                         .mine = needs.ok() ? needs->compared : StartFields{},
                         .extra = needs.ok() ? needs->of_lane : StartFields{},
                         .error = needs.status()};
  EPLB_ASSIGN_OR_RETURN(const std::vector<StartFields> of_lane,
                        RunStartRound(round, options_.rank, options_.world_size, exchange_));
  return JoinLanes(*needs, of_lane, options_.num_gpus);
}

absl::StatusOr<RowMover> Client::Impl::TakeMover(const JobNeeds& needs) {
  if (transport_ == nullptr) return MakeRowMover(MakeRowMoverOptions(needs), exchange_);
  RowMover mover{
      .transport = std::move(transport_), .queue = cuda::MakeHostRowQueue(), .report = {}};
  mover.report.name = std::string(mover.transport->name());
  return mover;
}

absl::Status Client::Impl::MakeRouteTables(const RowMemory& memory) {
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<cuda::RowQueue> queue, MakeQueueFor(memory));
  EPLB_ASSIGN_OR_RETURN(route_tables_,
                        RouteTables::Make(std::move(queue), *running_.placement, gpu()));
  const RouteArrays& arrays = route_tables_->arrays();
  device_tables_ = {.num_layers = topology_.num_layers(),
                    .num_experts = topology_.num_experts(),
                    .num_slots = topology_.num_slots(),
                    .physical_to_logical_map = arrays.physical_to_logical,
                    .logical_replica_count = arrays.replica_count,
                    .replicas = arrays.replicas,
                    .first_replica = arrays.first_replica,
                    .candidates = arrays.candidates,
                    .first_candidate = arrays.first_candidate,
                    .thresholds = arrays.thresholds};
  return absl::OkStatus();
}

absl::Status Client::Impl::Register(std::span<const ExpertTensorView> views) {
  if (disabled_) {
    if (route_tables_ != nullptr) return absl::OkStatus();
    // Kernels route by the tables all the same.
    EPLB_ASSIGN_OR_RETURN(const RegisteredTensors tensors, SortByRole(views));
    EPLB_ASSIGN_OR_RETURN(const RowMemory memory, FindMemory(tensors.moved));
    return MakeRouteTables(memory);
  }
  if (executor_ != nullptr) {
    return absl::FailedPreconditionError("RegisterExperts was called before");
  }
  absl::StatusOr<RegisteredTensors> registered = SortByRole(views);
  EPLB_ASSIGN_OR_RETURN(const JobNeeds needs, CompareTensors(registered));
  EPLB_ASSIGN_OR_RETURN(RowMover mover, TakeMover(needs));
  EPLB_RETURN_IF_ERROR(MakeRouteTables(needs.memory));
  EPLB_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                        Executor::Make(MakeExecutorOptions(), std::move(registered->moved),
                                       std::move(mover.transport), std::move(mover.queue)));
  EPLB_RETURN_IF_ERROR(control_->Barrier(options_.start_deadline));
  executor_ = std::move(executor);
  rows_on_device_ = needs.memory.device.has_value();
  derived_ = std::move(registered->derived);
  migration_ = {.weight_bytes = needs.bytes.weight,
                .state_bytes = needs.bytes.state,
                .state_residency = MakeExecutorOptions().state_residency};
  StartSession(Identity(needs.bytes, mover.report));
  return absl::OkStatus();
}

wire::Hello Client::Impl::Identity(const ExpertBytes& bytes,
                                   const TransportReport& transport) const {
  wire::Hello hello;
  hello.job = options_.job;
  hello.incarnation = incarnation_;
  hello.nonce = DrawNonce();
  hello.rank = options_.rank;
  hello.world_size = options_.world_size;
  hello.gpu = gpu().value;
  hello.lane = options_.rank / options_.num_gpus;
  hello.shape = ShapeOf(options_);
  hello.step = options_.first_step - 1;
  hello.vote_every = options_.vote_every;
  hello.report_every = options_.report_every;
  hello.weight_bytes = bytes.weight;
  hello.state_bytes = bytes.state;
  hello.staging_rows = topology_.max_slots_per_gpu();
  hello.staging_layers = options_.layers_per_chunk;
  hello.library_version = kLibraryVersion;
  hello.reduce = options_.reduce == "root" ? wire::Reduce::kRoot : wire::Reduce::kRank;
  hello.transport = {.name = transport.name,
                     .passed_over = transport.passed_over,
                     .device = transport.device,
                     .device_name = transport.device_name,
                     .nccl_version = transport.nccl_version,
                     .nccl_library = transport.nccl_library,
                     .settings = {}};
  for (const auto& [name, value] : transport.settings) {
    hello.transport.settings.push_back({.name = name, .value = value});
  }
  return hello;
}

void Client::Impl::StartSession(wire::Hello identity) {
  MemberOptions member{.identity = std::move(identity),
                       .migration = migration_,
                       .fits = [executor = executor_.get()](const MigrationPlan& plan) {
                         return executor->CheckFits(plan);
                       }};
  const uint64_t nonce = member.identity.nonce;
  const auto on_ready = [this](const Proposal& proposal, int64_t step) {
    log_.WriteReady({.event = "ready",
                     .step = std::max<int64_t>(step, 0),
                     .last_step = std::max<int64_t>(step, 0),
                     .version = proposal.propose.version,
                     .digest = proposal.propose.digest});
  };
  member_ = std::make_unique<SharedMember>(Member(std::move(member), running_),
                                           options_.report_max_steps, on_ready);
  if (options_.endpoint.empty()) return;
  SessionOptions session;
  session.connection.endpoint = options_.endpoint;
  session.connection.tls = TlsFilesOf(options_.tls);
  session.seed = nonce;
  const absl::MutexLock lock(&stats_mutex_);
  session_ = std::make_unique<Session>(std::move(session), *member_);
}

absl::Status Client::Impl::Record(int32_t layer, std::span<const int64_t> counts) {
  if (disabled_) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  return windows_.Record(layer, counts);
}

void Client::Impl::WritePlacement(int64_t first_step, const wire::Propose* propose) {
  if (!placements_.is_open()) return;
  LoggedPlacement entry{.step = first_step,
                        .version = running_.version,
                        .digest = running_.digest,
                        .placement = *running_.placement,
                        .reason = "first placement"};
  if (propose != nullptr) {
    entry.decided_first_step = propose->decided_first_step;
    entry.decided_last_step = propose->decided_last_step;
    entry.reason = propose->reason;
  }
  placements_.Write(PlacementsLogLine(entry));
}

void Client::Impl::Close(std::string_view reason) {
  if (closed_) return;
  closed_ = true;
  // Before the stop is logged: no READY comes after it.
  if (session_ != nullptr) {
    member_->SayGoodbye(
        {.reason = std::string(reason), .missing_ranks = {}, .failed = reason != "finished"});
  }
  if (ended_.ok()) {
    ended_ = absl::FailedPreconditionError("the client is closed");
    log_.FlushSteps();
    log_.WriteStop({.event = "stop",
                    .step = next_step_ - 1,
                    .last_step = next_step_ - 1,
                    .version = running_.version,
                    .digest = running_.digest,
                    .ok = reason == "finished",
                    .reason = reason});
  }
  if (session_ != nullptr) session_->Close();
}

ClientStats Client::Impl::Stats() const {
  ClientStats stats{.votes = votes_, .commits = commits_, .dropped_chunks = dropped_chunks_};
  const absl::MutexLock lock(&stats_mutex_);
  if (session_ == nullptr) return stats;
  const SessionStats session = session_->stats();
  stats.connected = session.connected;
  stats.reconnects = session.reconnects;
  stats.reports_sent = session.reports_sent;
  stats.refusals = session.refusals;
  stats.disconnected_seconds = session.disconnected_seconds;
  stats.dropped_steps = member_->dropped_steps();
  stats.session_waits_over_1ms = member_->long_waits();
  return stats;
}

Exchange MakeDaemonExchange(std::string endpoint, std::string job, int32_t rank, int32_t world_size,
                            absl::Duration timeout, const DaemonTls& tls) {
  if (absl::Status refused = EnterGrpc(); !refused.ok()) {
    using Answers = absl::StatusOr<std::vector<std::string>>;
    return [refused](std::string_view) { return Answers(refused); };
  }
  return MakeExchangeThroughDaemon(std::move(endpoint), std::move(job), rank, world_size, timeout,
                                   TlsFilesOf(tls));
}

}  // namespace eplb
