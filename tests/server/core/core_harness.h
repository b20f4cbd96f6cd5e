// A daemon's core with a scripted clock, a store in memory and sessions that are queues; and ranks
// that answer as the client library does. For every test that drives the core by events.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "placement/placement.h"
#include "server/core/core.h"

namespace eplb::core {

inline constexpr char kJob[] = "train";

// 4 layers, 6 experts on 6 slots of 3 GPUs.
TopologyOptions TestShape();
// Windows of 10 steps, a decision every 20, 2 layers a chunk.
Config TestConfig();
wire::Hello TestHello(int32_t rank, const TopologyOptions& shape = TestShape());
// Experts 0 and 1, both on GPU 0 of the static placement, have 100 tokens a layer, the others 10.
wire::LoadReport TestReport(int64_t first_step, int64_t last_step);
// Returns a report of steps 0..9 with exact splits in each layer. Other layouts peak 10 and 20
// higher.
wire::LoadReport TestSplitReport(int64_t tokens, int64_t peak);
// The static placement with experts 1 and 2 exchanged in these layers: even under TestReport.
Placement Exchanged(const std::vector<int32_t>& layers);

// Executes the core's effects in order. Fails the test when a message goes out before the store
// knows what it depends on (I6), and when a proposed version does not rise (I2).
class CoreHarness {
 public:
  explicit CoreHarness(Config config);

  // The daemon is killed and starts again from what was stored. All sessions are gone.
  void Restart();
  // Restarts with a new store, which may replace a damaged one.
  void LoseStore(std::optional<absl::Time> moved_aside = std::nullopt);
  // Restarts with an older copy of the store: its jobs, terms up to `term` and placements up to
  // those jobs' versions.
  void RestoreStore(std::map<std::string, StoredJob> copy, int64_t term);
  SessionId Open() { return ++last_session_; }
  // Opens a session that begins with this Hello.
  SessionId Join(const wire::Hello& hello);
  void Say(SessionId session, wire::UpMessage message);
  void Disconnect(SessionId session);
  // Moves the clock, then ticks.
  void Advance(absl::Duration duration);
  // Ticks `num` times, a second apart.
  void AdvanceSeconds(int num);
  void Handle(const Event& event);
  // Answers the newest Solve; false when there is none.
  bool AnswerSolve(absl::StatusOr<Placement> placement);

  v1::JobStatus View() const { return core_->Job(kJob, now_).value(); }
  // Name of the state without that of its type: "IDLE".
  absl::string_view state() const {
    return absl::string_view(v1::JobState_Name(View().state())).substr(sizeof("JOB_STATE_") - 1);
  }
  const Core& core() const { return *core_; }
  absl::Time now() const { return now_; }

  // Removes and returns what was sent on a session.
  std::deque<wire::DownMessage> Take(SessionId session);
  bool HasMail(SessionId session) const;
  std::optional<wire::DownMessage> TakeOne(SessionId session);
  // The status that ended a session, when the daemon ended it.
  std::optional<absl::Status> ClosedWith(SessionId session) const;
  // The newest event of this name; empty when there is none.
  std::string LastReason(const std::string& name) const;
  int64_t CountEvents(const std::string& name) const;
  int64_t num_solves() const { return num_solves_; }
  int64_t num_job_writes() const { return num_job_writes_; }
  // The solver works for other jobs: no solve begins.
  bool solver_is_busy = false;
  // Cancelled solves: job and id.
  const std::vector<std::pair<std::string, int64_t>>& cancelled_solves() const {
    return cancelled_solves_;
  }
  const std::optional<Solve>& pending_solve() const { return pending_solve_; }
  const std::map<std::string, StoredJob>& stored() const { return stored_; }
  int64_t stored_term() const { return stored_term_; }

  // The newest version of every plan that was stored, by number.
  const std::map<int64_t, v1::Plan>& plans() const { return plans_; }
  // The answer to every change, by ticket; the test fails on a second answer.
  const std::map<int64_t, absl::StatusOr<ChangeOutcome>>& replies() const { return replies_; }
  // Asks for a change with a fresh ticket and request_id, as "ann", and returns its answer. A
  // Rollback finds its placement among those that were ever stored.
  absl::StatusOr<ChangeOutcome> Ask(Verb verb, std::optional<int64_t> expect_version = {},
                                    std::string request_id = "");
  // The same as a preview.
  absl::StatusOr<ChangeOutcome> Preview(Verb verb);
  const std::vector<Record>& records() const { return records_; }
  // By index of the Event: the processor time that one held the core's lock without a pause.
  const std::map<size_t, absl::Duration>& longest_holds() const { return longest_holds_; }
  const std::vector<PastWindow>& past_windows() const { return past_windows_; }
  // Newest ones written, and how often they were.
  const std::vector<TypicalLoad>& typical_loads() const { return typical_loads_; }
  size_t typical_load_writes() const { return typical_load_writes_; }

  bool store_works = true;
  bool term_store_works = true;

 private:
  absl::StatusOr<ChangeOutcome> AskFor(Change change);
  void Execute(const Decision& decision);
  bool Execute(const Effect& effect);
  void Keep(const StoredJob& job);
  void CheckSend(const Send& send);

  Config config_;
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<Core> core_;
  int64_t stored_term_ = 0;
  std::map<std::string, StoredJob> stored_;
  std::map<int64_t, Placement> history_;  // placements of kJob, by version
  std::map<int64_t, v1::Plan> plans_;
  std::map<int64_t, absl::StatusOr<ChangeOutcome>> replies_;
  int64_t last_ticket_ = 0;
  std::map<SessionId, std::deque<wire::DownMessage>> mail_;
  std::map<SessionId, absl::Status> closed_;
  std::vector<SessionId> just_closed_;  // their SessionClosed comes after the decision
  std::vector<Record> records_;
  std::vector<PastWindow> past_windows_;
  std::vector<TypicalLoad> typical_loads_;
  size_t typical_load_writes_ = 0;
  std::map<size_t, absl::Duration> longest_holds_;
  std::optional<Solve> pending_solve_;
  std::optional<SolveStarted> solve_started_;  // not told yet
  std::vector<std::pair<std::string, int64_t>> cancelled_solves_;
  int64_t num_solves_ = 0;
  int64_t num_job_writes_ = 0;
  SessionId last_session_ = 0;
  int64_t highest_proposed_ = 0;
  int64_t highest_term_said_ = 0;  // by a rank
};

// One rank's member: what it runs, what it is PREPARED for, and what it has to say.
class FakeRank {
 public:
  explicit FakeRank(int32_t rank, const TopologyOptions& shape = TestShape());

  wire::Hello Hello() const;
  // Becomes the same rank of another run: a new process that knows nothing of the daemon.
  void Relaunch(const std::string& run);
  // Answers go to `outbox`.
  void Receive(const wire::DownMessage& message);
  // Applies the decision of the vote about the proposal for which this rank is PREPARED.
  void Apply(int64_t step);
  void Drop(wire::FailedCode code, const std::string& detail);
  void FinishComputing();

  struct Candidate {
    int64_t version = 0;
    Digest digest;
    Placement placement;
  };

  wire::Hello identity;
  Placement placement;
  int64_t version = 0;
  std::optional<Candidate> ready;
  // A slow rank is PREPARED only after FinishComputing; its Hello meanwhile tells of nothing.
  bool slow = false;
  std::optional<Candidate> computing;
  SessionId session = 0;
  std::deque<wire::UpMessage> outbox;
  std::vector<wire::Propose> proposals;  // all that it received
  bool silent = false;                   // receives and answers nothing

 private:
  void On(const wire::Propose& propose);
  void On(const wire::Cancel& cancel);
  void On(const wire::NeedPlacement& need);
  void On(const wire::Welcome& welcome);
  void On(const wire::Keep& keep);
  void On(const wire::SetReportInterval&) {}
  void On(const wire::Drain&) {}
};

// A daemon and the ranks of one job, one a GPU of the shape.
class TestJob {
 public:
  explicit TestJob(Config config = TestConfig(), const TopologyOptions& shape = TestShape());

  void Connect(int32_t rank);
  void ConnectAll();
  void Disconnect(int32_t rank);
  void DisconnectAll();
  // Lets all ranks run `placement` as `version`.
  void SetRunning(const Placement& placement, int64_t version);
  // Relaunches every rank.
  void Relaunch(const std::string& run);
  void SayAll(const wire::UpMessage& message);
  void FinishAll() { SayAll(wire::Goodbye{"finished", {}, false}); }
  void Fail(int32_t rank, const std::string& why = "out of memory");
  // These ranks report windows of 10 steps, a second each, from `step` on. Decisions change
  // nothing.
  void Train(const std::vector<int32_t>& trained, int64_t step, int windows);
  // Delivers all messages in both directions until none is left.
  void Deliver();
  void DeliverUp(int32_t rank);
  void DeliverDown(int32_t rank);
  // All ranks report this window, run under the placement that they run now; delivered.
  void Report(int64_t first_step, int64_t last_step);
  void ReportOf(int32_t rank, int64_t first_step, int64_t last_step);
  // All ranks connect, report a window, and the solver answers `candidate`: chunk 0 is proposed but
  // not yet delivered.
  void Propose(const Placement& candidate);
  // All ranks vote: the proposal that all are PREPARED for is applied, or dropped by all when the
  // transfer fails. Returns whether there was one.
  bool Vote(int64_t step, bool transfer_works = true);
  // Votes, and delivers what follows.
  bool VoteAndDeliver(int64_t step, bool transfer_works = true) {
    const bool voted = Vote(step, transfer_works);
    Deliver();
    return voted;
  }
  // All ranks take what is proposed and vote it through, a chunk at `step` and every 2 steps.
  void CommitAll(int64_t step);
  std::vector<wire::DownMessage> SentTo(int32_t rank);
  // The status that ended the rank's session, when the daemon ended it.
  std::optional<absl::Status> ClosedWith(int32_t rank) const {
    return daemon.ClosedWith(ranks[rank].session);
  }
  v1::Plan NewestPlan() const {
    return *daemon.core().OnePlan(kJob, int64_t(daemon.core().Plans(kJob, 1)->front().plan()));
  }

  CoreHarness daemon;
  std::vector<FakeRank> ranks;
};

// A job whose ranks are all connected.
struct ConnectedJob : TestJob {
  explicit ConnectedJob(Config config = TestConfig()) : TestJob(std::move(config)) { ConnectAll(); }
};

// A job that waits for the solver, which is asked about steps 0..9.
struct AskedJob : ConnectedJob {
  explicit AskedJob(Config config = TestConfig()) : ConnectedJob(std::move(config)) {
    Report(0, 9);
  }
};

// A job to which chunk 0 of `candidate` is proposed, but not yet delivered.
struct ProposedJob : TestJob {
  explicit ProposedJob(const Placement& candidate) { Propose(candidate); }
};

// A job whose ranks are PREPARED for chunk 0 of `candidate`.
struct PreparedJob : TestJob {
  explicit PreparedJob(const Placement& candidate) {
    Propose(candidate);
    Deliver();
  }
};

// The messages of one type.
template <class T, class Messages>
std::vector<T> Only(const Messages& messages) {
  std::vector<T> result;
  for (const wire::DownMessage& message : messages) {
    if (const T* one = std::get_if<T>(&message)) result.push_back(*one);
  }
  return result;
}

}  // namespace eplb::core
