#include "client/client.h"

#include <algorithm>
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
                       "; the other ranks get this error once they have connected"));
  const StartRound round{.what = "start", .mine = FieldsOf(options, disabled), .error = error};
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
  ClientParts parts{.setup = {.options = std::move(options),
                              .topology = topology,
                              .grid = grid,
                              .all_gather = std::move(all_gather),
                              .disabled = disabled,
                              .nccl = nccl}};
  RankSetup& setup = parts.setup;
  absl::Status own = std::move(found);
  if (!disabled) own.Update(OpenFiles(setup.options, parts));
  if (!disabled && !setup.options.endpoint.empty()) {
    own.Update(CheckThreadRoom(kThreadsOfClient));
    own.Update(EnterGrpc());
  }
  EPLB_ASSIGN_OR_RETURN(JobStart start,
                        StartJob(setup.options, topology, disabled, own, setup.all_gather));
  setup.run_id = std::move(start.run_id);
  setup.secret = std::move(start.secret);
  parts.running = std::move(start.running);
  EPLB_RETURN_IF_ERROR(parts.placements.Clear());  // after an initial placement was read from it
  return parts;
}

}  // namespace

absl::StatusOr<ClientParts> PrepareClient(ClientOptions options, AllGather all_gather) {
  EPLB_ASSIGN_OR_RETURN(ClientParts parts, Start(std::move(options), std::move(all_gather)));
  const RankSetup& setup = parts.setup;
  if (setup.disabled) return parts;
  const TcpControlOptions control = {.rank = setup.rank(),
                                     .world_size = setup.options.world_size,
                                     .bind_address = setup.options.bind_address,
                                     .secret = setup.secret,
                                     .connect_timeout = setup.options.start_deadline};
  EPLB_ASSIGN_OR_RETURN(parts.control, MakeTcpControlChannel(control, setup.all_gather));
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

absl::Status Client::PrepareSplit(const SplitSetup& setup) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->PrepareSplit(setup);
}

absl::Status Client::CountFor(int32_t layer, const cuda::CountArgs& choices, int64_t* row,
                              void* stream) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->CountFor(layer, choices, row, stream);
}

absl::Status Client::RouteFrom(int32_t layer, const int64_t* gathered, void* slots, void* stream) {
  return IsForkedCopy() ? absl::OkStatus() : impl_->RouteFrom(layer, gathered, slots, stream);
}

SplitLoopFigures Client::split_figures() const {
  return IsForkedCopy() ? SplitLoopFigures{} : impl_->split_figures();
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
    : setup_(std::move(parts.setup)),
      shown_(std::move(parts.running), setup_.gpu()),
      placements_(std::move(parts.placements)),
      log_(std::move(parts.history), setup_.options.rank, setup_.run_id),
      counts_{.windows = LoadWindows(setup_.options.num_layers, setup_.options.num_experts,
                                     setup_.options.report_every, setup_.options.first_step,
                                     running().version)},
      control_(std::move(parts.control)),
      transport_(std::move(parts.transport)),
      next_step_(setup_.options.first_step),
      cadence_(setup_.options.vote_every, setup_.options.first_step) {
  log_.Write({.event = "start",
              .step = setup_.options.first_step,
              .version = running().version,
              .digest = running().digest});
  WritePlacement(setup_.options.first_step, nullptr);
}

Client::Impl::~Impl() {
  Close("destroyed without Close");
  if (rows_.executor == nullptr || rows_.executor->may_vote()) return;
  // A write of ours has not ended: what it may use is never freed, and to free any memory of the
  // GPU would wait for it.
  (void)rows_.expert_squares.release();
  (void)rows_.executor.release();
  shown_.LeakRouteTables();
}

void Client::Impl::StartSession(wire::Hello identity) {
  MemberOptions member{.identity = std::move(identity),
                       .migration = rows_.migration,
                       .fits = [executor = rows_.executor.get()](const MigrationPlan& plan) {
                         return executor->CheckFits(plan);
                       }};
  const uint64_t nonce = member.identity.nonce;
  const auto on_prepared = [this](const Proposal& proposal, int64_t step) {
    log_.WriteReady({.event = "ready",
                     .step = std::max<int64_t>(step, 0),
                     .version = proposal.propose.version,
                     .digest = proposal.propose.digest,
                     .unix_micros = absl::ToUnixMicros(absl::Now())});
  };
  daemon_.SetMember(std::make_unique<SharedMember>(Member(std::move(member), running()),
                                                   setup_.options.report_max_steps, on_prepared));
  if (setup_.options.endpoint.empty()) return;
  SessionOptions session;
  session.endpoints = EndpointsOf(setup_.options);
  // So that the ranks together ask at most 200 questions a second.
  session.connection.leader_every =
      std::max(session.connection.leader_every, absl::Seconds(setup_.options.world_size / 200.0));
  session.backoff = BackoffFor(setup_.options.world_size);
  session.connection.tls = TlsFilesOf(setup_.options.tls);
  session.seed = nonce;
  session.rank = setup_.options.rank;
  session.speaks_for_all = setup_.options.rank == 0;
  counts_.watch = TokenWatch(setup_.options.rank, ReportedLayers(), setup_.options.num_layers);
  daemon_.Connect(std::move(session));
}

std::vector<int32_t> Client::Impl::ReportedLayers() const {
  std::vector<int32_t> layers;
  for (int32_t layer = 0; setup_.Reports() && layer < setup_.options.num_layers; ++layer) {
    if (setup_.options.reduce == "root" || Holds(layer)) layers.push_back(layer);
  }
  return layers;
}

absl::Status Client::Impl::CheckRegistered(const char* name) const {
  EPLB_RETURN_IF_ERROR(ended_);
  if (rows_.executor != nullptr) return absl::OkStatus();
  return FailedPrecondition(name, " was called before RegisterExperts");
}

absl::Status Client::Impl::CheckHeld(const char* what, int32_t layer) const {
  const bool known = layer >= 0 && layer < std::ssize(rows_.pipeline_stage_of_layer);
  if (!known || Holds(layer)) return absl::OkStatus();
  return InvalidInput(what, " of layer ", layer, ": it is registered by pipeline stage ",
                      rows_.pipeline_stage_of_layer[static_cast<size_t>(layer)],
                      ", this rank is of pipeline stage ",
                      setup_.grid.PipelineStageOf(setup_.rank()));
}

absl::Status Client::Impl::Record(int32_t layer, std::span<const int64_t> counts) {
  if (setup_.disabled) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  EPLB_RETURN_IF_ERROR(CheckNotCarried("Record"));
  if (setup_.options.reduce != "root") EPLB_RETURN_IF_ERROR(CheckHeld("counts", layer));
  counts_.watch.Recorded(layer);
  return counts_.windows.Record(layer, counts);
}

absl::Status Client::Impl::RecordStepTime(double seconds) {
  if (setup_.disabled) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  return counts_.windows.RecordStepTime(seconds);
}

absl::Status Client::Impl::RecordSplit(int32_t layer, std::span<const int64_t> quotas) {
  if (setup_.disabled) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  EPLB_RETURN_IF_ERROR(CheckNotCarried("RecordSplit"));
  if (SplitOf(setup_.options) != SplitMode::kBatch) {
    return FailedPrecondition(
        "RecordSplit was called, but the client's option split is \"equal\", expected \"batch\"");
  }
  EPLB_RETURN_IF_ERROR(CheckHeld("quotas", layer));
  EPLB_ASSIGN_OR_RETURN(const SplitSums sums, SumsOfSplit(layer, quotas, *running().placement));
  return counts_.windows.RecordSplits(layer, sums);
}

void Client::Impl::WritePlacement(int64_t first_step, const wire::Propose* propose) {
  if (!placements_.is_open()) return;
  LoggedPlacement entry{.step = first_step,
                        .version = running().version,
                        .digest = running().digest,
                        .placement = *running().placement,
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
  ahead_.Stop("this rank closes");
  shown_.StopSplits();
  if (reason == kFinished) AwaitPeers();
  // Before the stop is logged: no PREPARED comes after it.
  if (daemon_.has_session()) {
    daemon_.member().SayGoodbye(
        {.reason = std::string(reason), .missing_ranks = {}, .failed = reason != kFinished});
  }
  if (ended_.ok()) {
    ended_ = FailedPrecondition("the client is closed");
    log_.FlushSteps();
    log_.WriteStop({.event = "stop",
                    .step = next_step_ - 1,
                    .version = running().version,
                    .digest = running().digest,
                    .ok = reason == kFinished,
                    .reason = reason});
  }
  LeavePeers();
  daemon_.Close();
}

void Client::Impl::AwaitPeers() {
  if (!rows_.PeersMayStillRead() || !ended_.ok()) return;
  (void)control_->Farewell(kFarewell);  // in vain: this rank has waited long enough
}

void Client::Impl::LeavePeers() {
  control_.reset();
  if (rows_.executor != nullptr) rows_.executor->carrier().Leave();
}

ClientStats Client::Impl::Stats() const {
  ClientStats stats{.votes = votes_, .commits = commits_, .dropped_chunks = dropped_chunks_};
  daemon_.AddStats(stats);
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
