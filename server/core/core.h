// The daemon's decisions: a deterministic library without gRPC, threads, clock or I/O.
// Events come in one at a time with the time as a value; effects go out in the order in which they
// must happen.
//
// What the caller owes:
// - It stores `term()` durably before it serves anybody (or hands in StoreFailed of a StoreTerm as
//   the first event), and executes the effects of one decision in order before it hands in the next
//   event.
// - When a Store, StoreTerm or required Forget fails it drops the rest of that decision and hands
// in StoreFailed as
//   the very next event (job empty for a StoreTerm). Any other event means that they succeeded.
// - A Send or Close to a session that is gone does nothing. After a Close nothing more of that
//   session is handed in, but for its SessionClosed.
// - A Tick at least once a second: deadlines and graces are looked at there only.
#ifndef EPLB_SERVER_CORE_CORE_H_
#define EPLB_SERVER_CORE_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/cost.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/registry.h"
#include "proto/wire/job_memory.h"
#include "proto/wire/messages.h"
#include "server/core/change.h"
#include "server/core/counters.h"
#include "server/core/measured.h"
#include "server/core/plan.h"
#include "server/core/run_end.h"
#include "server/core/settings.h"

namespace eplb::core {

// A stream of a rank, numbered by the caller from 1; never used twice.
using SessionId = int64_t;

// What a job ran as a version.
struct RanVersion {
  int64_t version = 0;
  Digest digest;

  friend bool operator==(const RanVersion&, const RanVersion&) = default;
};

// What a restart must not lose of a job.
struct StoredJob {
  std::string job;
  int64_t version = 0;       // of `placement`
  int64_t next_version = 1;  // no proposal below this was ever sent
  // The newest one known to run; none of a job that was stopped before its ranks said what they
  // run.
  std::optional<Placement> placement;
  wire::JobMemory memory = {};  // what operators set, and what the launch in force has earned
  std::optional<RunEnd> end = std::nullopt;  // of its newest run; none while that lives
  // To write: the change that this write is part of. Not read.
  std::optional<DoneRequest> done = std::nullopt;
  // As read, oldest first; empty in what is written.
  std::vector<DoneRequest> requests = {};
  std::vector<Plan> plans = {};
  std::vector<RanVersion> history = {};  // placements that are kept
};

// One line of the audit log.
struct JobEvent {
  std::string job;
  std::string name;  // incarnation_started, incarnation_ended, incarnation_resumed, end_amended,
                     // taken_over, stepped_down, held, released, version_reused, chunks_limited,
                     // kept, observed, left_out, freeze_over, proposed, nacked, retracting,
                     // withdrawn, committed, pause_exceeded, quarantined, stuck, stalled,
                     // stalled_over, report_ahead, window_incomplete,
                     // window_complete_again, window_dropped, report_short, placements_differ,
                     // store_failed, expired, pace, vote_every_differs, memory_recalled,
                     // unknown_job_paused; of operators: rebalance,
                     // pause, resume, rollback, set_policy, forget, refused
  int64_t term = 0;  // that the daemon leads the job with; in its log only
  int64_t version = 0;
  std::string reason;       // one sentence
  std::string actor = {};   // the identity of the operator; empty for the daemon itself
  std::string before = {};  // of a change
  std::string after = {};
};

struct Config {
  std::string policy_name{kServicePolicyName};
  int32_t policy_every_steps = 200;  // decide at most once per so many steps
  double min_gain = 0.05;            // least fall of the predicted peak load, as a fraction of it
  int64_t freeze_first_step =
      0;  // no proposals while the job's step is in [first, last]; 0..-1 = never
  int64_t freeze_last_step = -1;
  // Prices; what an expert weighs is the job's. Unless token_seconds is known only min_gain counts.
  Costs costs{.horizon_steps = 1000};
  int32_t layers_per_chunk = 4;
  bool observe = false;  // policy.mode
  absl::Duration max_pause = absl::Milliseconds(200);
  std::map<std::string, SettingsPatch> job_settings;  // by job, over the ones above
  int32_t report_every_steps = 0;   // in a load window; 0 = as long as the ranks make them
  int32_t vote_every_steps = 0;     // what jobs should have chosen; 0 = anything
  double min_coverage = 0.95;       // share of ranks that must have reported a window
  int32_t max_pending_windows = 4;  // incomplete windows kept per job
  int32_t max_windows = 64;         // complete windows kept per job
  int64_t max_window_bytes = int64_t{512} << 20;      // of the loads in windows, all jobs together
  absl::Duration solve_deadline = absl::Seconds(60);  // of the policy's work, once it began
  absl::Duration prepare_deadline = absl::Seconds(60);  // Propose to the last Ready
  absl::Duration resolve_deadline =
      absl::Seconds(660);  // last Ready to the last Applied; above the vote's 600 s
  absl::Duration retract_deadline = absl::Seconds(60);
  absl::Duration session_grace =
      absl::Seconds(10);  // a rank may be away so long before its incarnation ends
  absl::Duration store_retry = absl::Seconds(10);  // between attempts while the store fails
  // A job without a connected rank for so long is forgotten. A job that ended stays for as long, so
  // that it can be read what became of it; it only makes room earlier for a new one.
  absl::Duration job_expiry = absl::Hours(24);
  int32_t max_jobs = 64;
  int32_t max_ranks_per_job = 16384;
  // When the store's database was found damaged and moved aside; none when it never was.
  std::optional<absl::Time> store_moved_aside;
  // Until then, on the core's clock, a job that the store does not know starts paused for it.
  absl::Time pauses_unknown_until = absl::InfiniteFuture();
  std::string server_version;
};

// ---- events ----
struct SessionMessage {
  SessionId session = 0;
  wire::UpMessage message;
};
struct SessionClosed {  // the stream ended, whoever ended it
  SessionId session = 0;
  std::string reason;
};
struct Solved {
  std::string job;
  int64_t solve_id = 0;
  absl::StatusOr<Placement> placement;  // already aligned to the request's `previous`
  double seconds = 0;
};
struct SolveStarted {  // the solver works on it from now on; before, it waited behind other jobs
  std::string job;
  int64_t solve_id = 0;
};
struct StoreFailed {  // a Store or a required Forget failed; no later effect was executed
  std::string job;    // empty: it was a StoreTerm
  absl::Status status;
};
// Load reports of a stream above its own limit, since the Tick before: they never became an event.
struct LimitedReports {
  SessionId session = 0;
  int64_t count = 0;
};
struct Tick {
  // Load reports that found no place in the queue of all jobs, since the daemon started.
  int64_t dropped_reports = 0;
  std::vector<LimitedReports> limited = {};
};
struct DrainRequested {
  absl::Duration grace;
};
// A starting rank 0 brings a placement of its own and wants a number for it. Answered by a Reply
// whose version is the number.
struct ReserveVersion {
  int64_t ticket = 0;  // of the caller, as a Change's
  std::string job;
};
using Event = std::variant<SessionMessage, SessionClosed, SolveStarted, Solved, StoreFailed, Tick,
                           DrainRequested, Change, ReserveVersion>;

// ---- effects ----
struct Send {
  SessionId session = 0;
  wire::DownMessage message;
};
struct Close {  // ends the stream with this status
  SessionId session = 0;
  absl::Status status;
  std::string refused = {};  // who, when that is refused: to be logged; else empty
};
struct Store {  // written durably before any later effect is executed
  StoredJob job;
};
struct StoreTerm {
  int64_t term = 0;
};
struct Solve {  // answered by SolveStarted and then Solved, both with the same id
  std::string job;
  int64_t solve_id = 0;
  std::string policy_name;
  std::shared_ptr<const Load> load;                 // sum of `recent`
  std::vector<std::shared_ptr<const Load>> recent;  // windows, oldest first
  std::shared_ptr<const Placement> previous;
};
struct CancelSolve {  // nobody waits for its answer any more; none need come
  std::string job;
  int64_t solve_id = 0;
};
struct Record {  // appended to the audit log and to the daemon's log
  JobEvent event;
};
struct StorePlan {  // written; replaces the plan of this number. Like a Record, its failure stops
  std::string job;  // nothing
  Plan plan;
};
struct Forget {  // removes all of a job from the store but its audit log
  std::string job;
  bool required = false;  // an operator asked: a failure is a StoreFailed; else it stops nothing
};
struct Reply {  // to the Change or ReserveVersion of this ticket: exactly one each
  int64_t ticket = 0;
  absl::StatusOr<ChangeOutcome> outcome;
};
using Effect = std::variant<Send, Close, Store, StoreTerm, Solve, CancelSolve, Record, StorePlan,
                            Forget, Reply>;

struct Decision {
  std::vector<Effect> effects;
  std::string reason;  // why, as one sentence; empty when nothing was decided
};

// What the daemon tells about a job.
struct RankView {
  int32_t rank = 0;
  bool connected = false;
  int64_t running_version = 0;
  int64_t ready_version = 0;
  int64_t step = 0;
  std::string state;          // connected, away, finished, failed, lost; expected before its Hello
  absl::Duration away;        // since the stream ended; zero when connected
  std::string answer;         // to the proposal in flight: none, ready, applied, failed; else empty
  double answer_seconds = 0;  // Propose to READY, of the newest proposal that it was READY for
  double pause_seconds = 0;   // boundary of the newest switch
  int64_t dropped_steps = 0;  // as it reported, since its incarnation began here
  std::string library_version;
  wire::TransportInfo transport;
};
// A launch that gathers its ranks, or waits for the one in force.
struct LaunchView {
  std::string incarnation;
  int32_t world_size = 0;
  int32_t registered = 0;  // ranks that said Hello
  int32_t connected = 0;
  absl::Duration since;  // its first rank came
  std::string waits;     // for what, as a sentence
};
struct JobView {
  std::string job;
  std::string incarnation;
  std::string state;  // HELD, IDLE, ..; FINISHED, FAILED or LOST once the newest run has ended
  absl::Duration state_age;
  std::string waiting_for;
  TopologyOptions shape;
  int32_t world_size = 0;
  int32_t connected_ranks = 0;
  int64_t step = 0;
  int64_t version = 0;
  Digest digest;
  // Measured: of the newest complete window whose placements are known, under those that its steps
  // ran under. 0 and empty before there is one.
  double balancedness = 0;
  std::vector<double> layer_balancedness;  // [num_layers]
  double balancedness_static = 0;          // counterfactual: the same window, static placement
  int64_t measured_first_step = 0;
  int64_t measured_last_step = 0;
  // Of the newest plan that switched anything: computed before, and measured after it.
  std::optional<double> balancedness_predicted;
  std::optional<double> balancedness_seen;
  int64_t last_switched_step = 0;       // of the newest switch; 0 = none is known
  std::optional<double> saved_seconds;  // as eplb_saved_seconds; none without cost.token_ns
  double spent_seconds = 0;             // as eplb_spent_seconds
  int64_t last_window_first_step = 0;
  int64_t last_window_last_step = 0;
  int64_t commits = 0;
  std::string last_reason;
  bool paused = false;
  std::string pause_reason;
  Settings settings;         // in force
  int32_t report_every = 0;  // steps in a window, in force
  std::string reduce;        // rank, root; empty before the first Hello
  double coverage = 0;       // share of reporters in the newest complete window; 0 = no window yet
  std::vector<int32_t> model_layers;
  std::string ending;          // of the newest run: finished, failed, lost; empty while it lives
  std::string end_reason;      // one sentence; empty while it lives
  std::string took_over;       // as Incarnation
  double stuck_seconds = 0;    // age of a state that is older than three times its deadline, else 0
  std::string stalled;         // why balancing has stopped, a name; empty: it has not
  std::string stalled_reason;  // one sentence; empty when it has not
  double step_seconds = 0;     // measured time of a step; 0: not known yet
  // Share of reporters that told the newest window that should be complete; 0: no such window yet.
  double coverage_now = 0;
  int64_t windows_given_up = 0;  // incomplete, since the daemon started
  std::vector<RankView> ranks;
  int64_t launch = 0;  // number of the launch in force, rising within the job; 0: none yet
  int64_t term = 0;    // that this daemon leads the job with
  std::optional<LaunchView> candidate;
  bool take_over_refused = false;  // it waits because the steps of the launch in force advance
  std::string refusal;             // of the newest Hello that was refused in the last 10 minutes
  int64_t refused_hellos = 0;      // of this job, since the daemon started
};

// How this daemon leads a launch.
struct LeaderView {
  int64_t term = 0;
  int32_t connected_ranks = 0;
  int32_t world_size = 0;
};

// Ranks of a job that were refused before the daemon knew the job.
struct RefusedJob {
  std::string job;
  std::string reason;  // of the newest
  int64_t count = 0;
  absl::Time at;  // the newest
};

struct WindowView {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::shared_ptr<const Load> load;
  std::shared_ptr<const GpuTokens> on_gpus = nullptr;  // null: a placement of them is not known
};

struct State;

// Threads: not safe; the caller serialises. Memory: bounded by Config's limits.
class Core {
 public:
  static constexpr int32_t kMaxPlans = 1000;  // kept per job

  // stored_term: the highest term ever stored; this core leads with stored_term + 1, which the
  // caller stores (from `term()`) before it serves.
  Core(Config config, int64_t stored_term, std::vector<StoredJob> stored_jobs, absl::Time now);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Never fails: what is wrong with an event is answered on its session.
  Decision Handle(const Event& event, absl::Time now);

  int64_t term() const;
  std::vector<JobView> Jobs(absl::Time now) const;                                     // by name
  absl::StatusOr<JobView> Job(const std::string& job, absl::Time now) const;           // NotFound
  absl::StatusOr<wire::PlacementBody> PlacementInForce(const std::string& job) const;  // NotFound
  // Above every version ever given out under this name, by this daemon and those before it.
  absl::StatusOr<int64_t> NextVersion(const std::string& job) const;  // NotFound
  // Newest first, at most kMaxPlans and `limit`. NotFound for an unknown job.
  absl::StatusOr<std::vector<Plan>> Plans(const std::string& job, int32_t limit) const;
  // NotFound for an unknown job and before the first complete window.
  absl::StatusOr<WindowView> NewestWindow(const std::string& job) const;
  // The version that a Rollback goes to: the one asked for, or the one before the decision that led
  // to what is in force. NotFound for an unknown job, FailedPrecondition when that is not known.
  absl::StatusOr<int64_t> RollbackTarget(const std::string& job,
                                         std::optional<int64_t> to_version) const;
  // NotFound unless this is the launch in force of a job that is known.
  absl::StatusOr<LeaderView> Leader(const std::string& job, const std::string& incarnation) const;
  // Of jobs that the daemon does not know, newest first, at most 16.
  std::vector<RefusedJob> Refusals() const;
  const Counters& counters() const;
  // Of the loads in the windows of all jobs, now.
  int64_t window_bytes() const;
  // Ok when proposals can be made; else the reason in one sentence: the daemon drains, or what must
  // be stored first cannot be stored. A job that is HELD does not count: its ranks still have to
  // reach this daemon.
  absl::Status Readiness() const;

 private:
  friend struct CorePeer;  // of the tests that explore: reads the state and goes on from a copy

  std::unique_ptr<State> state_;
};

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_CORE_H_
