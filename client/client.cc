#include "client/client.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/time/clock.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/thread_room.h"
#include "client/client_impl.h"
#include "client/fork_guard.h"
#include "client/options.h"
#include "client/session/daemon_all_gather.h"
#include "client/session/log_line.h"
#include "client/session/unary_calls.h"
#include "client/start.h"
#include "proto/wire/placement_files.h"

namespace eplb {
namespace {

constexpr std::string_view kFinished = "finished";  // the normal reason to close
// Ranks end a training together, up to what one of them still writes or copies.
constexpr absl::Duration kFarewell = absl::Seconds(2);
constexpr int kThreadsOfClient = 12;  // gRPC has 8, this library 2

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

// An option may be wrong on this rank alone, as an address is: the others would wait for it, and
// blame something else.
absl::Status TellOthers(const ClientOptions& options, bool disabled, const absl::Status& error,
                        const AllGather& all_gather) {
  const bool is_rank = options.rank >= 0 && options.rank < options.world_size;
  if (!is_rank || options.world_size == 1 || all_gather == nullptr) return error;
  LogLine(absl::StrCat("rank ", options.rank, ": ", error.message(),
                       "; the other ranks are told, which takes until they have come"));
  const StartRound round{
      .what = "start", .mine = FieldsOf(options, disabled), .extra = {}, .error = error};
  (void)RunStartRound(round, options.rank, options.world_size, all_gather);
  return error;
}

// Everything up to the control channel.
absl::StatusOr<ClientParts> Start(ClientOptions options, AllGather all_gather) {
  const bool disabled = DisabledByEnvironment();
  const absl::StatusOr<Topology> checked = CheckOptions(options);
  if (!checked.ok()) return TellOthers(options, disabled, checked.status(), all_gather);
  const Topology& topology = *checked;
  absl::Status found;
  if (!options.endpoint.empty() && !disabled) found = FindDaemons(options);
  if (!found.ok()) options.endpoint.clear();  // the start ends with the error, on all ranks
  EPLB_ASSIGN_OR_RETURN(const RankGrid grid, GridOf(options));
  EPLB_ASSIGN_OR_RETURN(const NcclSettings nccl, WithNcclEnvironment(options.nccl));
  ClientParts parts{.options = std::move(options),
                    .topology = topology,
                    .grid = grid,
                    .all_gather = std::move(all_gather),
                    .disabled = disabled,
                    .nccl = nccl};
  absl::Status own = std::move(found);
  if (!parts.disabled) own.Update(OpenFiles(parts.options, parts));
  if (!parts.disabled && !parts.options.endpoint.empty()) {
    own.Update(CheckThreadRoom(kThreadsOfClient));
    own.Update(EnterGrpc());
  }
  EPLB_ASSIGN_OR_RETURN(parts.start,
                        StartJob(parts.options, topology, parts.disabled, own, parts.all_gather));
  EPLB_RETURN_IF_ERROR(parts.placements.Clear());  // after an initial placement was read from it
  return parts;
}

}  // namespace

absl::StatusOr<ClientParts> PrepareClient(ClientOptions options, AllGather all_gather) {
  EPLB_ASSIGN_OR_RETURN(ClientParts parts, Start(std::move(options), std::move(all_gather)));
  if (!parts.disabled) {
    const TcpControlOptions control = {.rank = RankId{parts.options.rank},
                                       .world_size = parts.options.world_size,
                                       .bind_address = parts.options.bind_address,
                                       .secret = parts.start.secret,
                                       .connect_timeout = parts.options.start_deadline};
    EPLB_ASSIGN_OR_RETURN(parts.control, MakeTcpControlChannel(control, parts.all_gather));
  }
  return parts;
}

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(ClientOptions options,
                                                        AllGather all_gather) {
  EPLB_ASSIGN_OR_RETURN(ClientParts parts,
                        PrepareClient(std::move(options), std::move(all_gather)));
  return std::make_unique<Client>(std::make_unique<Impl>(std::move(parts)));
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Client::~Client() {
  // The child has none of the threads and connections that the members would end.
  if (impl_->fork_guard().InForkedChildQuietly()) (void)impl_.release();
}

bool Client::IsForkedCopy() const { return impl_->fork_guard().InForkedChild(); }

absl::Status Client::RegisterExperts(std::span<const ExpertTensorView> tensors) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->Register(tensors);
}

absl::Status Client::CheckExperts(const ExpertProbe& probe, void* stream) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->CheckExperts(probe, stream);
}

absl::Status Client::Carry(std::span<const int32_t> physical_to_logical_map, void* stream) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->Carry(physical_to_logical_map, stream);
}

absl::Status Client::ReduceGradients(std::span<const ReplicaRows> gradients, void* stream) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->ReduceGradients(gradients, stream);
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

absl::StatusOr<SplitFigures> Client::Split(int32_t layer, const BatchCounts& counts,
                                           std::span<int64_t> quotas, std::span<int64_t> own) {
  if (!IsForkedCopy()) return impl_->Split(layer, counts, quotas, own);
  std::ranges::fill(quotas, 0);
  std::ranges::fill(own, 0);
  return SplitFigures{};
}

absl::Status Client::SetSplitOptions(const SplitOptions& options) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->SetSplitOptions(options);
}

absl::Status Client::CheckCounts(int32_t layer, std::span<const int64_t> counts) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->CheckCounts(layer, counts);
}

absl::Status Client::RecordStepTime(double seconds) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->RecordStepTime(seconds);
}

void Client::VoteNo(std::string_view reason) {
  if (!IsForkedCopy()) impl_->VoteNo(reason);
}

absl::Status Client::RecordSplit(int32_t layer, std::span<const int64_t> quotas) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->RecordSplit(layer, quotas);
}

absl::StatusOr<BoundaryResult> Client::StepBoundary(int64_t step, void* stream) {
  if (IsForkedCopy()) return BoundaryResult{};
  return impl_->StepBoundary(step, stream);
}

const PlacementView& Client::placement() const { return impl_->view(); }
const PlacementView& Client::row_placement() const { return impl_->row_view(); }
const DeviceTables& Client::device_tables() const { return impl_->device_tables(); }
std::string_view Client::transport() const { return impl_->transport(); }
ClientStats Client::stats() const { return IsForkedCopy() ? ClientStats{} : impl_->Stats(); }
const std::string& Client::run_id() const { return impl_->run_id(); }
void Client::Close(std::string_view reason) {
  if (!IsForkedCopy()) impl_->Close(reason);
}

Client::Impl::Impl(ClientParts parts)
    : options_(std::move(parts.options)),
      topology_(parts.topology),
      grid_(parts.grid),
      all_gather_(std::move(parts.all_gather)),
      disabled_(parts.disabled),
      reports_(Reports(options_, grid_)),
      nccl_(parts.nccl),
      run_id_(std::move(parts.start.run_id)),
      secret_(std::move(parts.start.secret)),
      running_(std::move(parts.start.running)),
      tables_(running_, gpu()),
      splits_(running_.placement, running_.version),
      placements_(std::move(parts.placements)),
      log_(std::move(parts.history), options_.rank, run_id_),
      windows_(options_.num_layers, options_.num_experts, options_.report_every,
               options_.first_step, running_.version),
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

ExecutorOptions Client::Impl::MakeExecutorOptions() const {
  return {.topology = topology_,
          .gpu = gpu(),
          .ep_group = grid_.RanksOf(grid_.EpGroupOf(rank())),
          .layers = grid_.pipeline_parallel_size() == 1 ? LayersHeld::kAll : LayersHeld::kSome,
          .state_residency = options_.state_placement == StatePlacement::kWithPrimary
                                 ? StateResidency::kWithPrimary
                                 : StateResidency::kEveryReplica,
          .layers_per_chunk = options_.layers_per_chunk};
}

RowMoverOptions Client::Impl::MakeRowMoverOptions(const JobNeeds& needs) const {
  RowMoverOptions options{.transport = {.rank = rank(),
                                        .world_size = options_.world_size,
                                        .staging_bytes = needs.staging_bytes,
                                        .bind_address = options_.bind_address,
                                        .secret = secret_,
                                        .connect_timeout = options_.start_deadline},
                          .name = options_.transport,
                          .memory = needs.memory,
                          .ep_group = grid_.RanksOf(grid_.EpGroupOf(rank())),
                          .beside_steps = options_.ahead,
                          .nccl = nccl_};
  options.transport.peers = options.ep_group;
  // Every rank learns the same reasons.
  if (options_.rank == 0) options.transport.on_note = &LogLine;
  return options;
}

wire::Hello Client::Impl::Identity(const ExpertBytes& bytes,
                                   const TransportReport& transport) const {
  wire::Hello hello;
  hello.job = options_.job;
  hello.run_id = run_id_;
  hello.nonce = DrawNonce();
  hello.rank = options_.rank;
  hello.world_size = options_.world_size;
  hello.gpu = gpu().value;
  hello.ep_group = grid_.EpGroupOf(rank());
  hello.pipeline_parallel_size = grid_.pipeline_parallel_size();
  hello.expert_tensor_parallel = options_.expert_tensor_parallel;
  hello.shape = ShapeOf(options_);
  hello.step = options_.first_step - 1;
  hello.vote_every = options_.vote_every;
  hello.report_every = options_.report_every;
  hello.weight_bytes = bytes.weight;
  hello.state_bytes = bytes.state;
  hello.staging_rows = topology_.max_slots_per_gpu();
  hello.staging_layers = options_.layers_per_chunk;
  hello.library_version = kLibraryVersion;
  hello.take_over = TakesOver(options_);
  hello.reduce = options_.reduce == "root" ? wire::Reduce::kRoot : wire::Reduce::kRank;
  hello.split = SplitOf(options_);
  hello.transport = {.name = transport.name,
                     .fallback_reason = transport.fallback_reason,
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
  const auto on_prepared = [this](const Proposal& proposal, int64_t step) {
    log_.WriteReady({.event = "ready",
                     .step = std::max<int64_t>(step, 0),
                     .last_step = std::max<int64_t>(step, 0),
                     .version = proposal.propose.version,
                     .digest = proposal.propose.digest,
                     .unix_micros = absl::ToUnixMicros(absl::Now())});
  };
  member_ = std::make_unique<SharedMember>(Member(std::move(member), running_),
                                           options_.report_max_steps, on_prepared);
  if (options_.endpoint.empty()) return;
  SessionOptions session;
  session.endpoints = EndpointsOf(options_);
  // So that the ranks together ask at most 200 questions a second.
  session.connection.leader_every =
      std::max(session.connection.leader_every, absl::Seconds(options_.world_size / 200.0));
  session.backoff = BackoffFor(options_.world_size);
  session.connection.tls = TlsFilesOf(options_.tls);
  session.seed = nonce;
  session.rank = options_.rank;
  session.speaks_for_all = options_.rank == 0;
  token_watch_ = TokenWatch(options_.rank, ReportedLayers(), options_.num_layers);
  const absl::MutexLock lock(&stats_mutex_);
  session_ = std::make_unique<Session>(std::move(session), *member_);
}

std::vector<int32_t> Client::Impl::ReportedLayers() const {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; reports_ && layer < options_.num_layers; ++layer) {
    if (options_.reduce == "root" || Holds(layer)) layers.push_back(layer);
  }
  return layers;
}

absl::Status Client::Impl::CheckHeld(const char* what, int32_t layer) const {
  const bool known = layer >= 0 && layer < std::ssize(pipeline_stage_of_layer_);
  if (!known || Holds(layer)) return absl::OkStatus();
  return InvalidInput(what, " of layer ", layer, ": it is registered by pipeline stage ",
                      pipeline_stage_of_layer_[static_cast<size_t>(layer)],
                      ", this rank is of pipeline stage ", grid_.PipelineStageOf(rank()));
}

absl::Status Client::Impl::Record(int32_t layer, std::span<const int64_t> counts) {
  if (disabled_) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  EPLB_RETURN_IF_ERROR(CheckNotCarried("Record"));
  if (options_.reduce != "root") EPLB_RETURN_IF_ERROR(CheckHeld("counts", layer));
  token_watch_.Recorded(layer);
  return windows_.Record(layer, counts);
}

void Client::Impl::Show(const RunningPlacement& running) {
  tables_.Update(running);
  splits_.Show(running.placement, running.version);
}

absl::Status Client::Impl::RecordStepTime(double seconds) {
  if (disabled_) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  return windows_.RecordStepTime(seconds);
}

absl::Status Client::Impl::RecordSplit(int32_t layer, std::span<const int64_t> quotas) {
  if (disabled_) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  EPLB_RETURN_IF_ERROR(CheckNotCarried("RecordSplit"));
  if (SplitOf(options_) != SplitMode::kBatch) {
    return FailedPrecondition(
        "RecordSplit was called, but the client's option split is \"equal\", expected \"batch\"");
  }
  EPLB_RETURN_IF_ERROR(CheckHeld("quotas", layer));
  return windows_.RecordSplit(layer, quotas, *running_.placement);
}

void Client::Impl::WritePlacement(int64_t first_step, const wire::Propose* propose) {
  if (!placements_.is_open()) return;
  LoggedPlacement entry{.step = first_step,
                        .version = running_.version,
                        .digest = running_.digest,
                        .placement = *running_.placement,
                        .policy = {},
                        .asked_by = {},
                        .reason = "first placement"};
  if (propose != nullptr) {
    entry.decided_first_step = propose->decided_first_step;
    entry.decided_last_step = propose->decided_last_step;
    entry.decision = propose->decision;
    entry.policy = propose->policy;
    entry.asked_by = propose->asked_by;
    entry.reason = propose->reason;
  }
  placements_.Write(PlacementsLogLine(entry));
}

void Client::Impl::Close(std::string_view reason) {
  if (closed_) return;
  closed_ = true;
  StopAhead("this rank closes");
  if (reason == kFinished) AwaitPeers();
  // Before the stop is logged: no PREPARED comes after it.
  if (session_ != nullptr) {
    member_->SayGoodbye(
        {.reason = std::string(reason), .missing_ranks = {}, .failed = reason != kFinished});
  }
  if (ended_.ok()) {
    ended_ = FailedPrecondition("the client is closed");
    log_.FlushSteps();
    log_.WriteStop({.event = "stop",
                    .step = next_step_ - 1,
                    .last_step = next_step_ - 1,
                    .version = running_.version,
                    .digest = running_.digest,
                    .ok = reason == kFinished,
                    .reason = reason});
  }
  LeavePeers();
  if (session_ != nullptr) session_->Close();
}

void Client::Impl::AwaitPeers() {
  if (num_posts_ == posts_before_vote_ || !ended_.ok()) return;
  (void)control_->Farewell(kFarewell);  // in vain: this rank has waited long enough
}

void Client::Impl::LeavePeers() {
  control_.reset();
  if (executor_ != nullptr) executor_->carrier().Leave();
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
  stats.unknown_messages = session.unknown_messages;
  stats.disconnected_seconds = session.disconnected_seconds;
  stats.dropped_steps = member_->dropped_steps();
  stats.session_waits_over_1ms = member_->long_waits();
  return stats;
}

AllGather MakeDaemonAllGather(const ClientOptions& given) {
  ClientOptions options = given;
  absl::Status refused = CheckDaemonAllGather(options);
  if (refused.ok()) refused = FindDaemons(options);
  if (refused.ok()) refused = EnterGrpc();
  if (!refused.ok()) {
    using Answers = absl::StatusOr<std::vector<std::string>>;
    return [refused](std::string_view) { return Answers(refused); };
  }
  return MakeAllGatherThroughDaemon({.endpoints = EndpointsOf(options),
                                     .tls = TlsFilesOf(options.tls),
                                     .job = options.job,
                                     .launch_id = LaunchIdOf(options),
                                     .rank = options.rank,
                                     .world_size = options.world_size,
                                     .timeout = options.start_deadline});
}

}  // namespace eplb
