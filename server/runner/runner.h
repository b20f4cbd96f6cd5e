// Lends the deterministic core its threads, its clock and its store.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/core/core.h"
#include "server/history/traffic.h"
#include "server/history/window_history.h"
#include "server/process/free_memory.h"
#include "server/runner/change_desk.h"
#include "server/runner/effect_executor.h"
#include "server/runner/event_queue.h"
#include "server/runner/histogram.h"
#include "server/runner/sessions.h"
#include "server/runner/solver.h"
#include "server/store/store.h"

namespace eplb {

struct RunnerOptions {
  core::Config core;
  EventQueue::Limits queue;
  Sessions::Limits sessions;
  int32_t max_plan_questions = ChangeDesk::kMaxOfEngines;  // limits.max_plan_questions
  int32_t solver_threads = 1;
  std::string opening_note;  // finding of the daemon at its start; a warning for ten minutes
  // Why fewer streams fit than are configured: a warning once half of those that fit are open.
  std::string room_warning = {};
  WindowHistory::Limits history = {};
};

// Counters of the daemon since its start, for the metrics.
struct RunnerCounters {
  core::Counters core;
  int64_t queued_events = 0;  // now
  int64_t window_bytes = 0;   // bytes of loads in windows now
  // The most processor time that one event held the core, since the start.
  absl::Duration longest_hold = {};
};

// One thread owns the core: it takes an event, lets the core decide, executes the effects, then
// takes the next one. threads: every public call is safe. Counters, term, liveness and readiness
// are as of the last event and never wait for one. Jobs, Job and Refusals wait kPatience at most,
// and are then as of the last second. Other calls wait for the event at work.
class Runner {
 public:
  static constexpr absl::Duration kTick = absl::Milliseconds(200);
  static constexpr absl::Duration kStalled = absl::Seconds(10);  // a core thread that does not turn
  static constexpr absl::Duration kPatience = absl::Milliseconds(50);

  // Reads the store, writes the new term durably and starts the threads. When the store takes no
  // writes the daemon serves all the same, and is not ready: no rank is welcomed under a term that
  // is not stored. errors: those of reading the store.
  static absl::StatusOr<std::unique_ptr<Runner>> Start(RunnerOptions options,
                                                       std::unique_ptr<Store> store);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Sessions& sessions() { return sessions_; }
  const Sessions& sessions() const { return sessions_; }
  Admission Push(core::Event event) { return queue_.Push(std::move(event)); }
  // Hands an operator's change to the core; `done` is called once, on any thread, unless the change
  // cannot be taken. `change.ticket` and a Rollback's placement are filled in here.
  // errors: ResourceExhausted when too many wait, Unavailable after Stop.
  absl::Status Ask(core::Change change, ChangeDesk::Done done);
  // Hands out a version number of the job, as `version` of the outcome. `done` and errors: as Ask.
  absl::Status ReserveVersion(std::string job, ChangeDesk::Done done);
  // Hands an engine's question to the core; the outcome has the answer. `done` and errors: as Ask.
  absl::Status AskPlan(core::PlanQuestion question, ChangeDesk::Done done);
  absl::Status SettlePlan(core::PlanSettled settled, ChangeDesk::Done done);
  ChangeDesk& changes() { return changes_; }
  // A report above the limit of its stream.
  void CountLimitedReport(core::SessionId session) { queue_.CountLimitedReport(session); }
  int64_t limited_reports() const { return queue_.limited_reports(); }
  int64_t dropped_reports() const { return queue_.dropped_reports(); }  // the queue was full
  core::Buckets solve_seconds() const { return solve_seconds_.view(); }
  core::Buckets store_write_seconds() const { return executor_.write_seconds(); }
  int64_t store_errors() const { return executor_.write_errors(); }

  // Returns what is wrong with the daemon itself, one sentence each.
  std::vector<std::string> Warnings() const;
  int64_t term() const;
  // The term with which a store of several daemons elected this one; 0: there was no election.
  int64_t election_term() const { return elected_ ? term() : 0; }
  std::vector<v1::JobStatus> Jobs() const;
  absl::StatusOr<v1::JobStatus> Job(const std::string& job) const;
  absl::StatusOr<wire::PlacementBody> PlacementInForce(const std::string& job) const;
  absl::StatusOr<int64_t> NextVersion(const std::string& job) const;
  absl::StatusOr<core::LeaderView> Leader(const std::string& job, const std::string& run_id) const;
  std::vector<v1::Refusal> Refusals() const;
  // Returns the placement that the job ran as `version`. errors: NotFound for one that is not kept,
  // those of the store.
  absl::StatusOr<wire::PlacementBody> PlacementOf(const std::string& job, int64_t version) const;
  absl::StatusOr<std::vector<v1::Plan>> Plans(const std::string& job, int32_t limit) const;
  absl::StatusOr<v1::Plan> OnePlan(const std::string& job, int64_t plan) const;
  absl::StatusOr<core::WindowView> NewestWindow(const std::string& job) const;
  // Newest first, those above `after_sequence`. Of an empty job: what concerns no job. errors:
  // NotFound for a job that has no event at all and is not known, those of the store.
  absl::StatusOr<std::vector<v1::JobEvent>> Events(const std::string& job, int32_t limit,
                                                   int64_t after_sequence = 0) const;
  // Oldest first, the newest `limit` of those above `after`. errors: NotFound for an unknown job.
  absl::StatusOr<std::vector<v1::Window>> Windows(const std::string& job, int64_t after,
                                                  int32_t limit) const;
  // window: a number, or none for the newest. errors: NotFound for an unknown job, and where the
  // window's loads are not kept.
  absl::StatusOr<WindowLoads> LoadsOf(const std::string& job, std::optional<int64_t> window) const;
  // Returns what a decision moved, from the placements that are kept. plan: a number, or none for
  // the newest that committed anything. errors: NotFound for an unknown job, and for a plan that
  // moved nothing or whose placements are not kept. cost: that of TrafficBetween.
  absl::StatusOr<Traffic> TrafficOf(const std::string& job, std::optional<int64_t> plan) const;
  RunnerCounters Counters() const;

  // Ok while the core's thread turns; else Unavailable with a sentence.
  absl::Status Alive() const;
  // Ok when proposals can be made: alive, the store takes writes, the core is ready. As of the core
  // thread's last turn: never waits for a decision.
  absl::Status Readiness() const;

  // Stops the core's thread; what is queued is dropped, and changes that wait are answered. Then
  // closes the store: everything written is in its file.
  void Stop();

 private:
  Runner(RunnerOptions options, std::unique_ptr<Store> store, int64_t stored_term,
         std::vector<core::StoredJob> jobs);
  // Hands a question with a ticket to the core.
  template <class Question>
  absl::Status Post(Question question, ChangeDesk::Who who, ChangeDesk::Done done);
  absl::StatusOr<v1::Plan> NewestSwitched(const std::string& job) const;
  // An event when it left the core.
  struct Published {
    absl::Status readiness;
    int64_t term = 0;
    RunnerCounters counters;  // but for queued_events
  };
  struct Views {
    std::vector<v1::JobStatus> jobs;
    std::vector<v1::Refusal> refusals;
  };

  void Loop();
  void Handle(core::Event event);
  core::Decision Decide(const core::Event& event);
  // On the core's thread, which alone changes the core and may read it without the lock.
  void PublishViews();
  // Those of the last second.
  std::shared_ptr<const Views> LastViews() const;
  void LookUp(core::Change& change) const;
  void Tick();

  const bool elected_;
  const std::string opening_note_;
  const absl::Time started_;
  const std::string room_warning_;
  const int32_t max_sessions_;
  const std::unique_ptr<Store> store_;
  Sessions sessions_;
  EventQueue queue_;
  ChangeDesk changes_;
  mutable std::timed_mutex core_mutex_;  // held while the core decides, never while effects happen
  core::Core core_;                      // guarded by core_mutex_
  mutable std::mutex published_mutex_;   // taken after core_mutex_, held for a copy; guards
  Published published_;                  // published_ and views_
  std::shared_ptr<const Views> views_;
  std::atomic<int64_t> turned_nanos_;  // MonotonicNow() of the core thread's last turn
  absl::Time caught_up_;               // used by the core's thread; no event waited then
  FreeMemory free_memory_;             // used by the core's thread
  std::atomic<bool> stopping_ = false;
  int64_t logged_drops_ = 0;                                            // used by the core's thread
  absl::Time probed_, drops_logged_, windows_saved_, views_published_;  // used by the core's thread
  Histogram solve_seconds_;
  WindowHistory history_;
  Solver solver_;
  EffectExecutor executor_;
  std::thread thread_;
};

}  // namespace eplb
