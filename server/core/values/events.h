// Events into the core, and effects out of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/backtest/planner.h"
#include "placement/load_history.h"
#include "placement/placement.h"
#include "proto/wire/messages.h"
#include "server/core/values/record.h"
#include "server/core/values/views.h"

namespace eplb::core {

// A stream of a rank, numbered by the caller from 1; never used twice. Engines that ask have no
// stream: the core numbers their ranks below 0, and effects for these do nothing.
using SessionId = int64_t;

struct DecisionQuestion;  // server/core/decisions/question.h
struct DecisionAnswer;

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
  absl::StatusOr<std::shared_ptr<const PlannerOutcome>> planned;
  double seconds = 0;
  absl::Time began_at = kNoTime;  // by the clock of the core's `now`
  // The decision that follows. Null if the planner failed or no decision is due.
  std::shared_ptr<const DecisionAnswer> answer = nullptr;
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
  bool behind = false;  // events have waited for the core without a break for some time
  std::vector<LimitedReports> limited = {};
};
struct DrainRequested {
  absl::Duration grace;
};
// A starting rank 0 brings a placement of its own and wants a number for it. Answered by a Reply
// whose version is the number.
struct ReserveVersion {
  int64_t ticket = 0;  // number of the caller, as a Change's
  std::string job;
};
// A serving engine asks where its experts should be. Answered by a Reply with the placement to run,
// or without one: the current placement stays.
struct PlanQuestion {
  int64_t ticket = 0;
  std::string job;
  std::string run_id;
  std::string replaces_run_id;  // the run that this one goes on from; empty: none
  std::string engine;           // name and version
  int64_t number = 0;           // from 1, rising within a run
  int64_t expert_bytes = 0;     // 0: not known
  TopologyOptions shape;
  Placement current;  // the placement that runs
  LoadMatrix load;    // [L, E], tokens since the last question
};
// An engine took the newest answer, or did not.
struct PlanSettled {
  int64_t ticket = 0;
  std::string job;
  std::string run_id;
  int64_t version = 0;
  bool taken = false;
  std::string reason;  // why not
};
using Event = std::variant<SessionMessage, SessionClosed, SolveStarted, Solved, StoreFailed, Tick,
                           DrainRequested, Change, ReserveVersion, PlanQuestion, PlanSettled>;

// ---- effects ----
struct Send {
  SessionId session = 0;
  wire::DownMessage message;
};
struct Close {  // ends the stream with this status
  SessionId session = 0;
  absl::Status status;
  std::string refused = {};  // caller whose refusal must be logged; otherwise empty
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
  std::shared_ptr<const DecisionQuestion> question;
};
struct CancelSolve {  // its answer is no longer needed and may never come
  std::string job;
  int64_t solve_id = 0;
};
// Appended to the audit log, which adds number and time, and to the daemon's log.
// event.name: run_started, run_ended, run_resumed, end_amended, taken_over, stepped_down,
// recovering, released, version_reused, kept, observed, left_out, freeze_over, gpu_slow,
// gpu_recovered, speeds_unused, proposed, nacked, cancelling, withdrawn, committed, pause_exceeded,
// quarantined, stuck, stalled, stalled_over, not_counting, counting, report_ahead,
// window_incomplete, window_complete_again, window_dropped, report_short, placements_differ,
// splits_differ, store_failed, store_behind, expired, report_interval, vote_every_differs,
// memory_recalled, unknown_job_paused; of operators: rebalance, pause, resume, rollback,
// set_policy, forget, refused.
struct Record {
  v1::JobEvent event;
  int64_t term = 0;  // term with which the daemon leads the job; in its log only
};
struct StorePlan {  // written; replaces the plan of this number. Like a Record, its failure stops
  std::string job;  // nothing
  v1::Plan plan;
};
struct StoreTypicalLoads {  // written in place of the job's; its failure stops nothing
  std::string job;
  std::vector<TypicalLoad> loads;
};
struct Forget {  // removes all of a job from the store but its audit log
  std::string job;
  bool required = false;  // an operator asked: a failure is a StoreFailed; else it stops nothing
};
struct KeepWindow {  // to be looked back at; nothing is written, and nothing fails
  std::string job;
  PastWindow window;
};
struct Reply {  // to the event of this ticket: exactly one each
  int64_t ticket = 0;
  absl::StatusOr<ChangeOutcome> outcome;
};
using Effect = std::variant<Send, Close, Store, StoreTerm, Solve, CancelSolve, Record, StorePlan,
                            StoreTypicalLoads, Forget, KeepWindow, Reply>;

struct Decision {
  std::vector<Effect> effects;
  std::string reason;  // why, as one sentence; empty when nothing was decided
};

}  // namespace eplb::core
