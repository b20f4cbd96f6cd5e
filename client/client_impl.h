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

#include "client/batch_splits.h"
#include "client/client.h"
#include "client/first_placement.h"
#include "client/fork_guard.h"
#include "client/registered_tensors.h"
#include "client/rows/control/control_channel.h"
#include "client/rows/executor.h"
#include "client/rows/paths/transport_choice.h"
#include "client/rows/replica_rows.h"
#include "client/rows/route_tables.h"
#include "client/rows/square_sums.h"
#include "client/rows/staging_thread.h"
#include "client/run_log/boundary_times.h"
#include "client/run_log/run_log.h"
#include "client/session/load_windows.h"
#include "client/session/log_line.h"
#include "client/session/session.h"
#include "client/session/shared_member.h"
#include "client/session/token_watch.h"
#include "placement/rank_grid.h"

namespace eplb {

// The options of a client and what its rank agreed with the others before the client exists.
struct ClientParts {
  ClientOptions options;
  Topology topology;
  RankGrid grid;
  AllGather all_gather;
  bool disabled = false;
  NcclSettings nccl = {};
  JobStart start = {};
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
  void VoteNo(std::string_view reason) { no_reason_ = std::string(reason); }
  absl::StatusOr<BoundaryResult> StepBoundary(int64_t step, void* stream);
  absl::StatusOr<SplitFigures> Split(int32_t layer, const BatchCounts& counts,
                                     std::span<int64_t> quotas, std::span<int64_t> own);
  absl::Status SetSplitOptions(const SplitOptions& options) { return splits_.SetOptions(options); }
  absl::Status CheckCounts(int32_t layer, std::span<const int64_t> counts);
  absl::Status CheckExperts(const ExpertProbe& probe, void* stream);
  absl::Status Carry(std::span<const int32_t> physical_to_logical_map, void* stream);
  absl::Status ReduceGradients(std::span<const ReplicaRows> rows, void* stream);
  absl::Status BroadcastWeights(std::span<const ReplicaRows> rows, void* stream);
  absl::StatusOr<std::vector<double>> SumExpertSquares(std::span<const ReplicaRows> rows,
                                                       void* stream);
  void Close(std::string_view reason);
  // Takes a message as if the session had received it. REQUIRES: Register returned OK.
  void Tell(const wire::DownMessage& message) { member_->OnDown(message); }

  const PlacementView& view() const { return tables_.view(); }
  const PlacementView& row_view() const {
    return carried_ == nullptr ? tables_.view() : row_tables_->view();
  }
  const DeviceTables& device_tables() const { return device_tables_; }
  const std::string& run_id() const { return run_id_; }
  const ForkGuard& fork_guard() const { return fork_guard_; }
  std::string_view transport() const {
    if (StagingRuns()) return ahead_->transport;
    return executor_ == nullptr ? "" : executor_->transport_name();
  }
  ClientStats Stats() const ABSL_LOCKS_EXCLUDED(stats_mutex_);

 private:
  // ---- client.cc ----
  RankId rank() const { return RankId{options_.rank}; }
  GpuId gpu() const { return grid_.GpuOf(rank()); }
  // True if this rank reports its counts to the daemon.
  static bool Reports(const ClientOptions& options, const RankGrid& grid) {
    return options.reduce == "root" ? options.rank == 0 : grid.CountsTokens(RankId{options.rank});
  }
  // True if this pipeline stage registered the layer. REQUIRES: Register returned OK, layer in
  // range.
  bool Holds(int32_t layer) const {
    return pipeline_stage_of_layer_[static_cast<size_t>(layer)] == grid_.PipelineStageOf(rank());
  }
  ExecutorOptions MakeExecutorOptions() const;
  RowMoverOptions MakeRowMoverOptions(const JobNeeds& needs) const;
  wire::Hello Identity(const ExpertBytes& bytes, const TransportReport& transport) const;
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

  // Sets the placement that placement() shows and that splits use from now on.
  void Show(const RunningPlacement& running);

  // ---- boundary.cc: registration ----
  absl::StatusOr<JobNeeds> CompareTensors(
      const absl::StatusOr<RegisteredTensors>& registered) const;
  // Takes the transport of ClientParts, or makes one if there is none. Collective.
  absl::StatusOr<RowMover> TakeMover(const JobNeeds& needs);
  absl::Status MakeRouteTables(const RowMemory& memory);
  struct RowWorkers {
    std::unique_ptr<Executor> executor = {};
    std::unique_ptr<ExpertSquareSums> expert_squares = {};
  };
  // Makes the parts that work on the rows of this rank. Sets the route tables, and takes the
  // mover's parts.
  absl::StatusOr<RowWorkers> MakeWorkers(const RowMemory& memory, std::vector<ExpertTensor> moved,
                                         RowMover& mover);

  // ---- boundary.cc: steps ----
  // Ends the step's counts; returns the load window, if it ends here and this rank reports it.
  std::optional<wire::LoadReport> EndCounts(int64_t step);
  absl::Status Vote(int64_t step, BoundaryResult& result);
  // Writes what timer_ has collected, as the boundary ends; nothing without one.
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
  // The run is over on this rank: every later call returns `error`.
  absl::Status End(int64_t step, const absl::Status& error, const Proposal* target);
  // Puts what is staged into the slots, and these layers of `target` into the tables that kernels
  // read.
  absl::Status Switch(std::span<const LayerId> layers, const Placement& target);
  // Returns the seconds since the ranks agreed on the chunk. The wait for the slowest rank before
  // that vote is not included.
  double SecondsInSwitch() const;
  // Why a rank may not vote. `why`: what it failed in before.
  absl::Status WritesGoOn(std::string_view why) const;

  // ---- ahead.cc: ClientOptions::ahead ----
  // A chunk that all ranks agreed on, until the vote after that.
  struct AheadChunk {
    std::shared_ptr<const Proposal> proposal;
    std::string_view transport = {};  // transport before staging_thread_ had the executor
    // Absent as long as it has.
    std::optional<absl::StatusOr<Executor::Staged>> staged = {};
    absl::Time joined = {};  // MonotonicNow()
  };
  bool StagingRuns() const { return ahead_.has_value() && !ahead_->staged.has_value(); }
  // errors: InvalidArgument for tensors whose rows steps change.
  absl::Status CheckRowsStay(const RegisteredTensors& tensors) const;
  // Collective: whether rows are staged ahead, which is told in `report` if they are not.
  absl::Status PrepareAhead(Executor& executor, TransportReport& report);
  void BeginAhead(std::shared_ptr<const Proposal> proposal);
  // Waits for staging_thread_, if it has the executor.
  void JoinAhead();
  // Ends what is staged ahead: the next vote drops it. Nothing without it.
  void StopAhead(std::string_view why);
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
  // Where the rows are.
  const Placement& RowPlacement() const {
    return carried_ == nullptr ? *running_.placement : *carried_;
  }
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
  int64_t StagingBytes() const { return std::ssize(executor_->carrier().staging()); }
  // Ends the run with Aborted, and tells the peers, if `status` is an error.
  absl::Status EndIfFailed(const char* name, const absl::Status& status);

  const ForkGuard fork_guard_;
  const ClientOptions options_;
  const Topology topology_;
  const RankGrid grid_;
  const AllGather all_gather_;
  const bool disabled_;
  const bool reports_;
  const NcclSettings nccl_;
  const std::string run_id_;
  const std::string secret_;
  RunningPlacement running_;
  PlacementTables tables_;
  BatchSplits splits_;
  // Placement to which Carry moved the rows; null: running_.
  std::shared_ptr<const Placement> carried_;
  std::unique_ptr<PlacementTables> row_tables_;  // tables of carried_, from the first Carry on
  std::unique_ptr<RouteTables> route_tables_;    // null before Register
  DeviceTables device_tables_;
  LineFile placements_;
  RunLog log_;
  LoadWindows windows_;
  TokenWatch token_watch_;  // watches nothing unless this rank reports to a daemon
  LogOnce token_watch_log_;
  std::unique_ptr<ControlChannel> control_;
  std::unique_ptr<Transport> transport_;          // until the executor takes it
  std::vector<int32_t> pipeline_stage_of_layer_;  // [layers], empty before Register
  std::vector<DerivedTensor> derived_;
  MigrationOptions migration_;  // with the bytes of the job, so that EP groups plan alike
  // The session's thread asks the executor through the member: this order of destruction.
  std::unique_ptr<Executor> executor_;
  std::optional<AheadChunk> ahead_;
  std::unique_ptr<StagingThread> staging_thread_;     // null unless rows are staged ahead
  std::unique_ptr<ExpertSquareSums> expert_squares_;  // goes before
  bool rows_on_device_ = false;
  bool told_transport_ = false;         // a change of transport was logged
  bool ahead_promise_broken_ = false;   // rows of this rank changed while they were staged ahead
  std::string first_transport_reason_;  // why the first transport is not another one
  std::string ahead_note_;              // why rows are not staged ahead, though they should be
  std::unique_ptr<SharedMember> member_;
  mutable absl::Mutex stats_mutex_;
  std::unique_ptr<Session> session_;  // set once, under stats_mutex_

  int64_t next_step_;
  uint64_t num_posts_ = 0;          // numbers them for the transport, alike on all ranks
  uint64_t posts_before_vote_ = 0;  // posts that a vote has followed
  absl::Status ended_;              // sticky
  bool closed_ = false;
  absl::Time boundary_began_;           // MonotonicNow()
  absl::Time switch_began_;             // MonotonicNow()
  std::optional<BoundaryTimer> timer_;  // timer of a boundary at which this rank is PREPARED
  void* stream_ = nullptr;              // stream of the current boundary
  std::string no_reason_;  // why this rank votes no in its next vote; empty: it may vote yes
  std::atomic<int64_t> votes_ = 0;
  std::atomic<int64_t> commits_ = 0;
  std::atomic<int64_t> dropped_chunks_ = 0;
};

}  // namespace eplb
