// The state of a Client on one rank.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "client/ahead.h"
#include "client/boundary_state.h"
#include "client/client.h"
#include "client/daemon_link.h"
#include "client/first_placement.h"
#include "client/fork_guard.h"
#include "client/rank_setup.h"
#include "client/registered_rows.h"
#include "client/registered_tensors.h"
#include "client/rows/control/control_channel.h"
#include "client/rows/executor.h"
#include "client/rows/paths/transport_choice.h"
#include "client/rows/replica_rows.h"
#include "client/run_log/run_log.h"
#include "client/shown_placement.h"
#include "client/token_counts.h"
#include "client/vote_cadence.h"

namespace eplb {

// Parts of a client that Client::Connect prepares.
struct ClientParts {
  RankSetup setup;
  RunningPlacement running = {};
  LineFile history = {};
  LineFile placements = {};                      // rank 0
  std::unique_ptr<ControlChannel> control = {};  // null if disabled
  std::unique_ptr<Transport> transport = {};     // null: Register makes one by options.transport
};

// Checks the options, starts the job and connects the channel of the votes. Collective. errors:
// those of Client::Connect.
absl::StatusOr<ClientParts> PrepareClient(ClientOptions options, AllGather all_gather);

// Threads: the training thread, except Stats.
struct Client::Impl {
 public:
  explicit Impl(ClientParts parts);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  absl::Status Register(std::span<const ExpertTensorView> views);
  absl::Status Record(int32_t layer, std::span<const int64_t> counts);
  absl::Status RecordStepTime(double seconds);
  absl::Status RecordSplit(int32_t layer, std::span<const int64_t> quotas);
  void VoteNo(std::string_view reason) { boundary_.no_reason = std::string(reason); }
  absl::StatusOr<BoundaryResult> StepBoundary(int64_t step, void* stream);
  absl::StatusOr<SplitFigures> Split(int32_t layer, const BatchCounts& counts,
                                     std::span<int64_t> quotas, std::span<int64_t> own);
  absl::Status SetSplitOptions(const SplitOptions& options) {
    return shown_.splits().SetOptions(options);
  }
  absl::Status CheckCounts(int32_t layer, std::span<const int64_t> counts);
  absl::Status PrepareSplit(const SplitSetup& setup);
  absl::Status CountFor(int32_t layer, const cuda::CountArgs& choices, int64_t* row, void* stream);
  absl::Status RouteFrom(int32_t layer, const int64_t* gathered, void* slots, void* stream);
  SplitLoopFigures split_figures() const { return shown_.split_figures(); }
  absl::Status CheckExperts(const ExpertProbe& probe, void* stream);
  absl::Status Carry(std::span<const int32_t> physical_to_logical_map, void* stream);
  absl::Status ReduceGradients(std::span<const ReplicaRows> rows, void* stream);
  absl::Status BroadcastWeights(std::span<const ReplicaRows> rows, void* stream);
  absl::StatusOr<std::vector<double>> SumExpertSquares(std::span<const ReplicaRows> rows,
                                                       void* stream);
  void Close(std::string_view reason);
  // Takes a message as if the session had received it. REQUIRES: Register returned OK.
  void Tell(const wire::DownMessage& message) { daemon_.member().OnDown(message); }

  const PlacementView& view() const { return shown_.view(); }
  const PlacementView& row_view() const { return shown_.row_view(); }
  const DeviceTables& device_tables() const { return shown_.device_tables(); }
  const std::string& run_id() const { return setup_.run_id; }
  const ForkGuard& fork_guard() const { return fork_guard_; }
  std::string_view transport() const {
    if (ahead_.Runs()) return ahead_.chunk->transport;
    return rows_.executor == nullptr ? "" : rows_.executor->transport_name();
  }
  ClientStats Stats() const;

 private:
  // ---- client.cc ----
  const RunningPlacement& running() const { return shown_.running(); }
  // True if this pipeline stage registered the layer. REQUIRES: Register returned OK, layer in
  // range.
  bool Holds(int32_t layer) const {
    return rows_.pipeline_stage_of_layer[static_cast<size_t>(layer)] ==
           setup_.grid.PipelineStageOf(setup_.rank());
  }
  // errors: the end of the run; FailedPrecondition, naming the call, before Register.
  absl::Status CheckRegistered(const char* name) const;
  void StartSession(wire::Hello identity);
  // errors: InvalidArgument for a layer that another pipeline stage registered, and so counts.
  absl::Status CheckHeld(const char* what, int32_t layer) const;
  // Returns the error that Split has for this layer and counts; empty: none.
  std::string WrongCounts(int32_t layer, std::span<const int64_t> counts);
  // Before a normal end: what ranks share, such as a communicator, goes with the first that leaves,
  // and others may still be taking their last rows. Where they voted since, all have theirs.
  void AwaitPeers();
  // Ranks that go on learn of it in their next vote, or in rows that they share, and do not wait.
  void LeavePeers();
  // Layers whose tokens this rank reports, rising.
  std::vector<int32_t> ReportedLayers() const;
  void WritePlacement(int64_t first_step, const wire::Propose* propose);

  // ---- register_experts.cc ----
  absl::StatusOr<JobNeeds> CompareTensors(
      const absl::StatusOr<RegisteredTensors>& registered) const;
  // Takes the transport of ClientParts, or makes one if there is none. Collective.
  absl::StatusOr<RowMover> TakeMover(const JobNeeds& needs);
  struct RowWorkers {
    std::unique_ptr<Executor> executor = {};
    std::unique_ptr<ExpertSquareSums> expert_squares = {};
  };
  // Makes the parts that work on the rows of this rank. Sets the route tables, and takes the
  // mover's parts.
  absl::StatusOr<RowWorkers> MakeWorkers(const RowMemory& memory, std::vector<ExpertTensor> moved,
                                         RowMover& mover);

  // ---- boundary.cc ----
  absl::Status Vote(int64_t step, BoundaryResult& result);
  // Writes what the boundary's timer has collected, as the boundary ends; nothing without one.
  void WriteTimes(absl::Time ended);
  absl::Status RunChunk(int64_t step, const Proposal& proposal, BoundaryResult& result);
  Executor::StageOptions MakeStageOptions(absl::Time began);
  // staged: what became of this rank's rows.
  absl::Status SecondVote(int64_t step, const Proposal& proposal,
                          const absl::StatusOr<Executor::Staged>& staged, BoundaryResult& result);
  absl::Status Commit(int64_t step, const Proposal& proposal, BoundaryResult& result);
  // errors: FailedPrecondition for a stream where the CPU moves the rows.
  absl::Status CheckStream(void* stream) const;
  // Tells the daemon once that rows go by another way than at the start.
  void TellTransport();
  absl::Status Drop(int64_t step, const Proposal& proposal, BoundaryResult& result);
  // The run is over on this rank: every later call returns `error`. target: what was voted on.
  absl::Status End(const absl::Status& error, const Proposal* target = nullptr);
  // Puts what is staged into the slots, and these layers of `target` into the tables that kernels
  // read.
  absl::Status Switch(std::span<const LayerId> layers, const Placement& target);
  // Why a rank may not vote. `why`: what it failed in before.
  absl::Status WritesGoOn(std::string_view why) const;

  // ---- ahead.cc: ClientOptions::ahead ----
  // errors: InvalidArgument for tensors whose rows steps change.
  absl::Status CheckRowsStay(const RegisteredTensors& tensors) const;
  // Collective: whether rows are staged ahead, which is told in `report` if they are not.
  absl::Status PrepareAhead(Executor& executor, TransportReport& report);
  void BeginAhead(std::shared_ptr<const Proposal> proposal);
  // errors: Aborted, and the run has ended: a write of this rank may still land.
  absl::Status StopAheadHere(std::string_view why);
  // Collective, if a chunk is staged ahead: afterwards no write of any rank can still land, and
  // staging is free for other rows. errors: as StopAheadHere, also for a rank that is missing.
  absl::Status StopAheadTogether(std::string_view why);
  absl::Status FinishAhead(int64_t step, BoundaryResult& result);
  // All ranks know that rows of some rank changed. reason: why this rank's chunk is dropped, so
  // far.
  void GiveUpAhead(std::string& reason);
  // reason, and why rows are not staged ahead, though they should be.
  std::string WithAheadNote(std::string_view reason) const;

  // ---- expert_check.cc ----
  absl::Status CheckLayer(LayerId layer, const ExpertProbe& probe);
  // Moves a layer's rows and shows `to` in the tables, as far as all ranks could.
  absl::Status MoveForCheck(LayerId layer, const Placement& from, const Placement& to);
  // Writes the probe's digest of each local slot into `outputs` and its first error into `failure`.
  void Probe(const ExpertProbe& probe, LayerId layer, std::vector<uint64_t>& outputs,
             absl::Status& failure) const;

  // ---- carry.cc ----
  // errors: FailedPrecondition, naming the call, while the rows are not where placement() says.
  absl::Status CheckNotCarried(const char* name) const;
  absl::StatusOr<Placement> TargetOf(std::span<const int32_t> physical_to_logical_map) const;
  // Collective: whether all ranks carry to the same placement at the same step. mine: why this rank
  // cannot, or OK.
  absl::Status AgreeOnCarry(const Digest& target, const absl::Status& mine);
  // Which ranks have the value `lowest` and which have not. errors: always FailedPrecondition.
  absl::Status NameDifference(const char* what, int64_t mine, int64_t lowest);
  // Ends the run with DataLoss because rows are not where placement() says; also a run that a lost
  // rank has ended with Aborted, after which rows may be saved.
  absl::Status EndAsMoved(const std::string& why);
  absl::Status CarryLayers(std::span<const LayerId> layers, const Placement& target);
  // Stages a plan on all ranks: nothing is staged after an error. what: whose rows, for messages.
  // errors: Unavailable when they could not be moved, Aborted when the run has ended.
  absl::Status StageOnAllRanks(const MigrationPlan& plan, const std::string& what);

  // ---- replicas.cc ----
  using ReplicaPosts = std::vector<ReplicaPost>;
  static std::vector<ReplicaTensor> TensorsOf(std::span<const ReplicaRows> rows);
  // Returns why the call `name` is impossible, before anything is begun.
  absl::Status CheckReplicaCall(const char* name, std::span<const ReplicaTensor> tensors,
                                ReplicaFlow flow, void* stream) const;
  absl::Status CheckNoReplicas(const char* name, std::span<const ReplicaTensor> tensors) const;
  absl::StatusOr<ReplicaPosts> PlanReplicas(std::span<const ReplicaTensor> tensors,
                                            ReplicaFlow flow, const EpGroupCall& call) const;
  EpGroupCall MakeEpGroupCall(const char* name, std::span<const ReplicaTensor> tensors,
                              void* stream);
  int64_t StagingBytes() const { return std::ssize(rows_.executor->carrier().staging()); }
  // Ends the run with Aborted, and tells the peers, if `status` is an error.
  absl::Status EndIfFailed(const char* name, const absl::Status& status);

  const ForkGuard fork_guard_;
  const RankSetup setup_;
  ShownPlacement shown_;
  LineFile placements_;
  RunLog log_;
  TokenCounts counts_;
  std::unique_ptr<ControlChannel> control_;
  std::unique_ptr<Transport> transport_;  // until the executor takes it
  // The threads of the next two use the executor: this order of destruction.
  RegisteredRows rows_;
  AheadStaging ahead_;
  DaemonLink daemon_;
  int64_t next_step_;
  absl::Status ended_;  // sticky
  bool closed_ = false;
  VoteCadence cadence_;
  BoundaryState boundary_;
  std::atomic<int64_t> votes_ = 0;
  std::atomic<int64_t> commits_ = 0;
  std::atomic<int64_t> dropped_chunks_ = 0;
};

}  // namespace eplb
