// The state of the core: jobs, their runs and ranks, and the proposal in flight. Plain data; the
// rules are in the files beside it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "placement/backtest/planner.h"
#include "placement/decision/prediction.h"
#include "placement/digest.h"
#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"
#include "placement/rank_grid.h"
#include "placement/topology.h"
#include "server/core/state/gpu_speed_estimate.h"
#include "server/core/state/step_claims.h"
#include "server/core/state/step_rate.h"
#include "server/core/state/windows.h"
#include "server/core/values/account.h"
#include "server/core/values/config.h"
#include "server/core/values/counters.h"
#include "server/core/values/events.h"
#include "server/core/values/measured.h"
#include "server/core/values/record.h"
#include "server/core/values/views.h"

namespace eplb::core {

inline constexpr int32_t kMaxReportEvery = 1 << 20;  // steps in a window
inline constexpr int64_t kCounts = -1;               // value of Rank::silent_since

// Longest pause of any rank for a chunk, from the vote to the commit, and the most bytes that a
// rank received in it.
struct MeasuredPause {
  int64_t bytes = 0;
  double seconds = 0;
  bool is_first = false;  // the run's first, which also connects ranks and touches staging
};

enum class Phase { kRecovering, kIdle, kSolving, kPreparing, kVoting, kCancelling, kQuarantine };

struct Rank {
  bool said_hello = false;
  bool finished = false;  // said Goodbye without an error
  bool failed = false;    // said Goodbye with an error
  bool cut = false;       // its newest stream ended without Goodbye, and nothing was heard since
  uint64_t nonce = 0;
  SessionId session = 0;       // 0 = not connected
  int64_t session_number = 0;  // number of the process' newest session
  absl::Time away_since = absl::InfiniteFuture();
  int64_t running_version = 0;
  Digest running_digest;
  int64_t prepared_version = 0;  // 0 = none
  int64_t step = 0;
  int64_t staging_rows = 0;
  int64_t staging_layers = 0;  // 0: it did not say
  int32_t report_every = 0;    // its newest value, or the value that all ranks changed to
  Answer answer = Answer::kNone;
  double answer_seconds =
      0;                     // Propose to PREPARED, of the newest proposal that it was PREPARED for
  double pause_seconds = 0;  // newest switch, from the vote on
  double step_seconds = 0;   // mean of its newest load report that said it; 0: not known
  int64_t dropped_steps = 0;
  int64_t reported_step = -1;  // the last of its newest load report
  int32_t report_steps = 0;    // steps in its newest load report
  // [num_layers]: first step of the newest reports in a row without a token of the layer; kCounts
  // if the newest report has one. Empty while all layers count.
  std::vector<int64_t> silent_since = {};
  int64_t reports_dropped = 0;  // reports that arrived faster than its stream may send
  int64_t leapt_to = -1;        // the newest step that was not believed for itself
  bool ahead_told = false;      // recorded: it reports steps far ahead of all others
  std::string library_version;
  wire::TransportInfo transport;
};

// kLost: a rank was away too long; it lives again when all its processes are back. kFinal: never.
enum class Ending { kLive, kLost, kFinal };

// The first report that a rank of a run failed.
struct Failure {
  int32_t rank = 0;
  int64_t step = 0;  // step of that rank
  absl::Time at = absl::InfinitePast();
  std::string why;                     // reason that the rank gave
  std::vector<int32_t> missing_ranks;  // ranks that did not answer a vote
};

// Change that the ranks were asked for and have not yet shown; 0 = none.
struct ReportIntervalChange {
  int32_t report_every = 0;  // steps
  int64_t from_step = 0;
};

// A serving engine's run has one rank, which speaks for all GPUs. It asks for placements, and its
// next question says what it runs.
struct Asking {
  std::string engine;         // name and version; empty: the run trains
  int64_t number = 0;         // number of the newest question
  int64_t ticket = 0;         // the question that waits for its answer; 0: none
  int64_t begun_by = -1;      // number of the decision that it began in
  int64_t given_version = 0;  // proposal in the newest answer
  int32_t times_given = 0;    // answers that carried it
};

// Answers to engines. They are the last effects of a decision, so that they are dropped, and given
// again as a refusal, if a write of the decision fails.
struct EngineReplies {
  std::vector<Reply> waiting;     // they belong to the decision in the making
  std::vector<int64_t> answered;  // tickets that the newest decision with an answer answered
  int64_t decision = -1;          // its number
};

// One run of a job.
struct Run {
  Run(const Topology& frame, const RankGrid& ranks_grid) : topology(frame), grid(ranks_grid) {}

  std::string name;
  int64_t run_number = 0;  // its number, once it is the job's own
  // The number that an earlier daemon gave it, or this one when it knew runs before; else 0.
  int64_t claimed = 0;
  bool take_over = false;  // it replaces one whose steps advance
  absl::Time since;        // its first rank came
  TopologyOptions shape;
  Topology topology;
  RankGrid grid;
  int32_t vote_every = 0;
  int32_t report_every = 0;  // current setting
  ReportIntervalChange report_interval_change;
  StepRate rate;
  StepFront front;
  Asking asking;
  int32_t told_report_every = 0;  // in the newest "report_interval" event
  wire::Reduce reduce = wire::Reduce::kRank;
  SplitMode split = SplitMode::kEqual;
  MigrationOptions migration;
  std::vector<int32_t> model_layers;  // [num_layers] or empty
  std::vector<Rank> ranks;            // [world_size]
  int32_t num_hello = 0;
  int32_t num_connected = 0;
  int32_t num_finished = 0;
  // With another shape than what was known when it came: the least version that was not given out.
  // 0: nothing to look at, or it was looked at.
  int64_t fresh_version = 0;
  bool reuse_told = false;  // recorded: it began under a number of another placement
  std::string moved;        // place where its ranks went on, once a rank has told it
  std::string took_over;    // the one that still had ranks connected when this one replaced it
  Ending ending = Ending::kLive;
  v1::RunEnd end;                  // end of a run that is not live
  std::optional<Failure> failure;  // failure that ended the run

  int32_t world_size() const { return static_cast<int32_t>(ranks.size()); }
  // Every how many ranks one reports: the whole world when rank 0 reports for all.
  int32_t ranks_per_reporter() const {
    return reduce == wire::Reduce::kRoot ? world_size() : grid.expert_tensor_parallel();
  }
};

// The newest placement known to run.
struct LastKnownPlacement {
  int64_t version = 0;
  Digest digest;
  std::shared_ptr<const Placement> placement;
};

// State of a job in the store, so that only changes are written.
struct StoreStamp {
  int64_t version = 0;
  int64_t next_version = 0;
  Digest digest;
  std::string end;  // bytes of the newest run's v1.RunEnd; empty while the run lives
  friend bool operator==(const StoreStamp&, const StoreStamp&) = default;
};

// The chunk that the ranks were asked to switch to.
struct Proposal {
  wire::Propose message;
  std::shared_ptr<const Placement> after;
  int64_t decision_count = 0;  // the decision that proposed it
  int32_t num_prepared = 0;
  int32_t num_applied = 0;
  int32_t num_failed = 0;
  std::optional<Digest> plan_hash;      // hash of the first rank that was PREPARED
  std::optional<int64_t> applied_step;  // step of the first rank that reported Applied
  // Summed over ranks. None once a rank came back that did not report to this daemon what it
  // received.
  std::optional<int64_t> received_bytes = 0;
  int64_t most_received_bytes = 0;  // most bytes of one rank
  double longest_pause_seconds = 0;
  absl::Time proposed_at = absl::InfinitePast();
  double prepare_seconds = 0;  // to the last PREPARED; 0 before it
  std::string withdrawal;      // why it was cancelled, or what the first failed transfer said
};

// Layers that are switched together.
struct Chunk {
  wire::LayerList layers;      // rising, as they are afterwards
  int64_t incoming_bytes = 0;  // bytes into each layer's GPU that receives most, summed over layers
  int64_t rows = 0;            // staging of each layer's GPU that needs most, summed over layers
  // The whole placement afterwards: made for the next chunk only, because it is large.
  std::shared_ptr<const Placement> after = nullptr;
  Digest digest = {};  // digest of `after`
};

// The chunks of a decision that are still to be proposed. A newer decision replaces them.
struct Chunks {
  std::deque<Chunk> rest;
  int32_t total = 0;
  std::vector<double> falls;  // [L] or empty: by how many tokens a step each layer's peak falls
  std::string reason;
  int64_t decided_first_step = 0;  // the steps that the decision covers
  int64_t decided_last_step = 0;
  int64_t decision = 0;  // number of its Plan
  std::string policy;    // policy of its Plan
  std::string asked_by;
  bool despite_pause = false;  // an operator asked for them and paused the job with it
};

// A question to the solver: of a SOLVING job, or beside the proposal in flight while chunks of a
// decision are still to be proposed.
struct Solving {
  int64_t id = 0;                           // 0 = nothing is being solved
  absl::Time since = absl::InfinitePast();  // asked for, or begun
  bool began = false;             // the solver works on it: it no longer waits behind other jobs
  absl::Time began_at = kNoTime;  // reported by the solver once it is solved
  bool force = false;             // propose whatever changes
  bool preview = false;           // record what would be proposed, and leave the job's pace alone
  std::string asked_by;           // an identity, when an operator asked
  std::string policy_name;
  int64_t first_step = 0;
  int64_t last_step = 0;
  double balancedness = 0;  // measured on those steps; 0 when that is not known
  double seconds = 0;       // time of the solver, once it is solved
  std::shared_ptr<const DecisionQuestion> question;
};

// Skips 1, 2, 4, ... decisions after proposals that did not commit.
struct BackOff {
  int32_t length = 0;
  int32_t to_skip = 0;
};

// Which rank was asked for the body of the running placement.
struct PendingFetch {
  int32_t rank = -1;
  SessionId session = 0;  // 0 = no rank was asked
  absl::Time at = absl::InfinitePast();
};

// Events and reserved versions are things that ranks can cause as often as they like and that cost
// a durable write. A job may cause only a bounded number of them.
struct Budget {
  static constexpr double kBurst = 64;
  static constexpr double kPerSecond = 0.1;

  double left = kBurst;
  absl::Time filled = absl::InfinitePast();
};

// Which connected ranks are to carry the newest memory.
enum class Tell { kNobody, kFew, kAll };

inline constexpr size_t kMaxRan = 64;
inline constexpr size_t kMaxRefusedJobs = 16;

// Tells that reports arrive faster than they are taken: by the daemon for all jobs, or by the limit
// of one job's streams.
struct ReportOverload {
  int32_t factor = 1;  // 1, 2, 4, ..: how much longer windows are than configured
  int64_t dropped_reports = 0;
  absl::Time raised_at = absl::InfinitePast();
  absl::Time calm_since = absl::InfinitePast();
};

// name: store, state, lost, hung, windows, decisions, withdrawn; candidate, refused: of another
// run than the current one; empty: balancing goes on, or no run trains. reason: one sentence.
struct Stall {
  std::string name;
  std::string reason;
};

// Stall of a job that was reported.
struct StallWatch {
  Stall told;
  absl::Time differs_since =
      absl::InfiniteFuture();  // since when the stall differs from the reported one
};

// State that the planner learned in the job's run.
struct Chooser {
  std::shared_ptr<const PlannerState> state;  // null: nothing yet
  int64_t last_step = -1;                     // last step of the newest window that it knows
};

// When the load history was written last, and how long the next write waits for.
struct StoredHistory {
  bool changed = false;  // since then
  absl::Time at = absl::InfinitePast();
  absl::Duration wait = absl::Minutes(1);
};

// A decision takes effect in the middle of the window that follows: the next one is the first whole
// window under it.
inline constexpr int32_t kWindowsToSwitch = 1;
inline PredictionRecord NewPredictions() { return PredictionRecord(kWindowsToSwitch); }

// How long a job is in its phase. SetPhase begins it anew.
struct InPhase {
  absl::Time since = absl::InfinitePast();
  absl::Time retried_at = absl::InfinitePast();  // when the phase's deadline was last acted on
  bool stuck_recorded = false;
  bool stuck_counted = false;
};

// The runs that owned the job, and the one that owns it.
struct Owner {
  // Run whose quarantine, account, back-off and last decision are the job's.
  std::string run_id;
  int64_t run_number = 0;  // number of the newest run that became the job's own; 0: none did
  // Until then the run that owned the job when the daemon started may come back.
  absl::Time due = absl::InfinitePast();
  // Runs that never come back, newest last, at most wire::kMaxEndedRuns: they failed, or
  // finished, or another replaced them.
  std::deque<wire::EndedRun> ended_runs;
  // How the newest run ended before the daemon started; none once a rank has said Hello since.
  std::optional<v1::RunEnd> ended_before;
};

// The newest memory of the job that the store or a rank had.
struct MemoryStamp {
  int64_t term = 0;
  int64_t serial = 0;
  // The memory is the store's or this daemon's own: a rank may add to what stops the job, not lift
  // it.
  bool is_ours = false;
  Tell tell = Tell::kNobody;  // whom it was not yet sent to
};

// The job's row in the store, and writes of it.
struct StoreState {
  std::optional<StoreStamp> stamp;  // absent: the job is not in the store
  absl::Status error;               // result of the newest write
  absl::Time attempted_at = absl::InfinitePast();
  bool due = false;  // changed by a decision that did not write it
};

struct Versions {
  int64_t next = 1;               // above every version that was given out
  std::map<int64_t, Digest> ran;  // first placement under each number; the newest kMaxRan numbers
};

// Hellos that were refused.
struct RefusedHellos {
  std::string reason;  // reason of the newest; empty: none was
  absl::Time at = absl::InfinitePast();
  int64_t count = 0;
  std::string for_good;  // the newest refusal that is for good
  absl::Time for_good_at = absl::InfinitePast();
};

// Changes by operators.
struct Orders {
  wire::SettingsPatch patch;
  bool paused = false;
  bool paused_by_lost_store = false;  // see JobMemory
  std::string pause_reason;
  std::deque<DoneRequest> requests;  // newest last, at most kMaxDoneRequests
};

// Wanted length of the windows, and how well windows of the current length predicted the next one:
// squared errors of the shares of tokens, summed over windows, of which older ones count less.
struct WindowPace {
  int32_t steps = 0;         // wanted; 0: as long as now
  int64_t of = 0;            // length of the windows that the errors are of
  double error_of_last = 0;  // the newest window is the prediction
  double error_of_mean = 0;  // the mean of the two newest windows is the prediction
};

// Load reports of the current run.
struct Reports {
  WindowPace pace;
  int64_t window_bytes = 0;      // bytes of the windows, when they were last bounded
  std::string not_counting;      // see JobStatus.not_counting_reason
  int64_t covered_step = -1;     // the last of the newest complete window; -1: none yet
  int64_t windows_given_up = 0;  // since the daemon started
  ReportOverload overload;       // above the limits of the job's streams
  double seconds = 0;            // see JobMemory.report_seconds
  double gap_seconds = 0;        // see JobMemory
};

// GPU speeds of the current run.
struct Speeds {
  GpuSpeedEstimate estimate;  // kept unless gpu_speeds is off
  std::string unused;         // why decisions use no GPU speeds, as was recorded; empty: none
};

// When a load window was complete, and the version that its last steps ran under; -1: not known.
struct WindowArrival {
  int64_t last_step = -1;
  absl::Time at = absl::InfinitePast();
  int64_t version = -1;
};

// Decisions for the current run, and what came of them. Each decision by itself is in Job::plans.
struct Decisions {
  std::optional<int64_t> last_step;
  BackOff back_off;
  Chooser chooser;
  LoadHistory load_history;  // windows of all runs
  StoredHistory stored_history;
  PredictionRecord predictions = NewPredictions();
  v1::PredictionCounts prediction_counts;  // since the daemon started
  std::deque<MeasuredPause> pauses;        // pauses of the newest chunks
  Account account;
  WindowArrival arrival;  // arrival of the newest complete window
  StepMean sampled;       // windows whose time is in the account's sums
  absl::Time account_written = absl::InfinitePast();
  int64_t commits = 0;       // since the daemon started
  double solve_seconds = 0;  // solver's time for its newest answer
  std::string last_reason;
};

struct Budgets {
  Budget events;
  int64_t events_left_out = 0;  // since the newest that was recorded
  Budget reservations;          // versions that starting ranks reserve
};

struct Job {
  std::string name;
  Phase phase = Phase::kRecovering;
  InPhase in_phase;
  StallWatch stall;

  std::optional<Run> current;
  std::optional<Run> candidate;  // gathers while `current` is live
  Owner owner;
  int64_t step = 0;                                      // highest step of any rank of `current`
  absl::Time unattended_since = absl::InfiniteFuture();  // no rank has been connected since

  int64_t term = 0;           // term with which this daemon leads the job
  SessionId first_hello = 0;  // the first that was welcomed under it; 0: none was
  MemoryStamp memory;
  StoreState store;
  RefusedHellos refused;
  Budgets budgets;

  wire::Settings settings;  // current settings
  Orders orders;
  std::string quarantine;  // why nothing is proposed until an operator resumes; empty: none

  std::optional<LastKnownPlacement> last_known;
  Versions versions;
  Windows windows;
  Reports reports;
  Speeds speeds;

  Decisions decisions;
  std::deque<v1::Plan> plans;  // newest last, at most kMaxPlans
  Solving solving;
  Chunks chunks;
  std::optional<Proposal> proposal;
  PendingFetch pending_fetch;
};

// The change that the newest decision made: taken back should its Store fail.
struct Undo {
  int64_t decision_count = 0;
  int64_t ticket = 0;
  std::string verb;
  std::string actor;
  Job job;  // and the counters, as they were before
  Counters counters;
};

// Job, run and rank of a session.
struct SessionBinding {
  std::string job;
  std::string run_id;
  int32_t rank = 0;
};

struct State {
  Config config;
  int64_t term = 0;
  bool term_stored = true;
  int64_t term_decision_count = -1;  // number of the decision that stored it last
  bool draining = false;
  int64_t decision_count = 0;  // decisions made so far
  int64_t last_solve_id = 0;
  ReportOverload report_overload;
  SessionId last_hello = 0;     // welcomed by the decision before this one, or 0
  std::string last_stored_job;  // written by the decision before this one, or empty
  absl::Time term_attempt = absl::InfinitePast();
  std::optional<Undo> undo;
  absl::Time last_event = absl::InfinitePast();
  absl::Time resumed_at = absl::InfinitePast();  // the first event after a standstill of the daemon
  Counters counters;
  std::map<SessionId, SessionBinding>
      bindings;  // sessions that said Hello; ordered, so that effects are too
  std::map<std::string, Job> jobs;
  std::set<std::string> asking;  // jobs whose engines asked
  EngineReplies engine_replies;
  std::deque<RefusedJob> refusals;  // refusals of jobs that are not in `jobs`, newest first
};

}  // namespace eplb::core
