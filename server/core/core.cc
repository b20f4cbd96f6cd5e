#include "server/core/core.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

#include "server/core/admin.h"
#include "server/core/decisions/decide.h"
#include "server/core/decisions/held.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/proposal.h"
#include "server/core/decisions/watchdog.h"
#include "server/core/ranks/answers.h"
#include "server/core/ranks/expiry.h"
#include "server/core/ranks/hello.h"
#include "server/core/ranks/incarnation.h"
#include "server/core/ranks/launch.h"
#include "server/core/ranks/pace.h"
#include "server/core/ranks/stall.h"
#include "server/core/state/memory.h"
#include "server/core/state/step_rate.h"
#include "server/core/state/turn.h"
#include "server/core/state/windows.h"

namespace eplb::core {
namespace {

constexpr int64_t kMaxDropped = int64_t{1} << 32;  // steps, in one report
constexpr int64_t kMaxBytes = int64_t{1} << 48;    // received by a rank in one chunk
constexpr double kMaxPauseSeconds = 1e6;           // eleven days in one step

absl::Status CheckNumber(const char* field, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", it must be in 0..", most));
}

absl::Status Check(const wire::Ready& ready) {
  return CheckNumber("ready: version", ready.version, kMaxNumber);
}
absl::Status Check(const wire::Nack& nack) {
  return CheckNumber("nack: version", nack.version, kMaxNumber);
}
absl::Status Check(const wire::Failed& failed) {
  absl::Status status = CheckNumber("failed: version", failed.version, kMaxNumber);
  status.Update(CheckNumber("failed: step", failed.step, kMaxNumber));
  return status;
}
absl::Status Check(const wire::Applied& applied) {
  absl::Status status = CheckNumber("applied: version", applied.version, kMaxNumber);
  status.Update(CheckNumber("applied: step", applied.step, kMaxNumber));
  status.Update(CheckNumber("applied: received_bytes", applied.received_bytes, kMaxBytes));
  // Not the other way round: what is no number is in no range.
  if (!(applied.pause_seconds >= 0 && applied.pause_seconds <= kMaxPauseSeconds)) {
    status.Update(
        absl::InvalidArgumentError(absl::StrCat("applied: pause_seconds is ", applied.pause_seconds,
                                                ", it must be in 0..", kMaxPauseSeconds)));
  }
  return status;
}
absl::Status Check(const wire::PlacementBody&) { return absl::OkStatus(); }
absl::Status Check(const wire::Goodbye&) { return absl::OkStatus(); }
absl::Status Check(const wire::Moved& moved) {
  return CheckNumber("moved: term", moved.term, kMaxNumber);
}

// Of what a rank says about a proposal.
template <class Message>
absl::Status CheckProposed(const Job& job, const Message& message) {
  if constexpr (std::is_same_v<Message, wire::Ready>) {
    return CheckGivenOut(job, "ready", message.version);
  } else if constexpr (std::is_same_v<Message, wire::Nack>) {
    return CheckGivenOut(job, "nack", message.version);
  } else if constexpr (std::is_same_v<Message, wire::Failed>) {
    return CheckGivenOut(job, "failed", message.version);
  } else if constexpr (std::is_same_v<Message, wire::Applied>) {
    return CheckGivenOut(job, "applied", message.version);
  }
  return absl::OkStatus();
}

void Dispatch(Turn& turn, Speaker speaker, const wire::Ready& ready) {
  HandleReady(turn, speaker, ready);
}
void Dispatch(Turn& turn, Speaker speaker, const wire::Nack& nack) {
  HandleNack(turn, speaker, nack);
}
void Dispatch(Turn& turn, Speaker speaker, const wire::Failed& failed) {
  HandleFailed(turn, speaker, failed);
}
void Dispatch(Turn& turn, Speaker speaker, const wire::Applied& applied) {
  HandleApplied(turn, speaker, applied);
}
void Dispatch(Turn& turn, Speaker speaker, const wire::PlacementBody& body) {
  HandlePlacementBody(turn, speaker, body);
}
void Dispatch(Turn& turn, Speaker speaker, const wire::Goodbye& goodbye) {
  HandleGoodbye(turn, speaker, goodbye);
}
void Dispatch(Turn& turn, Speaker speaker, const wire::Moved& moved) {
  HandleMoved(turn, speaker, moved);
}

template <class Message>
void OnMessage(Turn& turn, Speaker speaker, const Message& message) {
  absl::Status status = Check(message);
  status.Update(CheckProposed(speaker.job, message));
  if (!status.ok()) {
    CloseRank(turn, speaker.incarnation, speaker.rank, std::move(status));
    return;
  }
  Dispatch(turn, speaker, message);
}

void OnMessage(Turn& turn, Speaker speaker, const wire::Hello&) {
  CloseRank(turn, speaker.incarnation, speaker.rank,
            absl::InvalidArgumentError("a second Hello on one session"));
}

absl::Status CheckReporter(const Incarnation& incarnation, int32_t rank) {
  if (incarnation.reduce == wire::Reduce::kRoot && rank != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("load report: rank ", rank,
                     " reports, but the job adds its counts up and rank 0 alone reports them"));
  }
  if (incarnation.reduce == wire::Reduce::kRank && !incarnation.grid.CountsTokens(RankId{rank})) {
    return absl::InvalidArgumentError(
        absl::StrCat("load report: rank ", rank, " reports, but of each ",
                     incarnation.grid.expert_tensor_parallel(),
                     " ranks that see the same tokens only the first does"));
  }
  return absl::OkStatus();
}

WindowLimits LimitsOf(const Config& config, const Incarnation& incarnation) {
  WindowLimits limits{.num_reporters = 1,
                      .report_every = incarnation.report_every,
                      .next_report_every = incarnation.pace.report_every,
                      .min_coverage = config.min_coverage,
                      .max_pending = config.max_pending_windows,
                      .max_complete = config.max_windows};
  if (incarnation.reduce == wire::Reduce::kRoot) return limits;
  const RankGrid& grid = incarnation.grid;
  limits.num_reporters = grid.world_size() / grid.expert_tensor_parallel();
  limits.ranks_per_reporter = grid.expert_tensor_parallel();
  limits.num_pipeline_ranks = grid.num_pipeline_ranks();
  return limits;
}

// Looks at all jobs only when the windows of this one have grown.
void BoundLoads(State& state, Job& job) {
  const int64_t bytes = BytesOf(job.windows);
  if (bytes > std::exchange(job.window_bytes, bytes)) {
    std::vector<Windows*> windows;
    for (auto& [name, one] : state.jobs) windows.push_back(&one.windows);
    state.counters.windows_given_up += BoundBytes(windows, state.config.max_window_bytes);
  }
}

// Where it takes several ranks to complete a window, windows far ahead would only push out those
// that can become complete.
StepClaim StepClaimOf(const Config& config, Incarnation& incarnation, int32_t rank,
                      const wire::LoadReport& report, const WindowLimits& limits) {
  const StepClaim claim =
      JudgeStep(incarnation, rank, report.last_step, config.max_pending_windows);
  const int32_t reporters = limits.num_reporters / limits.num_pipeline_ranks;
  const bool alone_completes = limits.min_coverage * reporters <= 1;
  return claim == StepClaim::kLeap && alone_completes ? StepClaim::kBelieved : claim;
}

void TellLeap(Turn& turn, Speaker speaker, const wire::LoadReport& report) {
  ++turn.state.counters.reports_ahead;
  if (std::exchange(speaker.rank.ahead_told, true)) return;
  const int64_t others = OthersStep(speaker.incarnation.front, speaker.index);
  const std::string known = others < 0
                                ? "no other rank has told a step near it"
                                : absl::StrCat("the other ranks are at most at step ", others);
  RecordEvent(turn, speaker.job, "report_ahead", speaker.job.known ? speaker.job.known->version : 0,
              absl::StrCat("rank ", speaker.index, " reports steps ", report.first_step, "..",
                           report.last_step, ", ", known, "; such reports of it are left out"));
}

// How far the rank trained.
void TakeStep(Turn& turn, Speaker speaker, int64_t step) {
  Rank& rank = speaker.rank;
  rank.step = std::max(rank.step, step);
  Advance(speaker.incarnation.front, speaker.index, step);
  if (!speaker.is_current() || speaker.incarnation.ending == Ending::kFinal) return;
  speaker.job.step = std::max(speaker.job.step, step);
  NoteStep(speaker.incarnation, step, turn.now);
  RememberReportTime(speaker.job);
}

void OnMessage(Turn& turn, Speaker speaker, const wire::LoadReport& report) {
  Job& job = speaker.job;
  Incarnation& incarnation = speaker.incarnation;
  absl::Status status = CheckReport(report, incarnation.topology);
  status.Update(CheckNumber("load report: last_step", report.last_step, kMaxNumber));
  status.Update(CheckNumber("load report: dropped_steps", report.dropped_steps, kMaxDropped));
  if (!status.ok()) {
    CloseRank(turn, incarnation, speaker.rank, std::move(status));
    return;
  }
  if (absl::Status reports = CheckReporter(incarnation, speaker.index); !reports.ok()) {
    CloseRank(turn, incarnation, speaker.rank, std::move(reports));
    return;
  }
  Counters& counters = turn.state.counters;
  ++counters.reports;
  counters.report_cells += int64_t{incarnation.shape.num_layers} * incarnation.shape.num_experts;
  AddCapped(counters.dropped_steps, report.dropped_steps);
  AddCapped(speaker.rank.dropped_steps, report.dropped_steps);
  const WindowLimits limits = LimitsOf(turn.state.config, incarnation);
  const StepClaim claim =
      StepClaimOf(turn.state.config, incarnation, speaker.index, report, limits);
  if (claim == StepClaim::kLeap) {
    TellLeap(turn, speaker, report);
    return;
  }
  speaker.rank.reported_step = std::max(speaker.rank.reported_step, report.last_step);
  if (claim == StepClaim::kBelieved) TakeStep(turn, speaker, report.last_step);
  if (!speaker.is_current() || incarnation.ending != Ending::kLive) return;
  const ReportOutcome outcome = AddReport(job.windows, report, speaker.index, limits);
  BoundLoads(turn.state, job);
  for (const Note& note : outcome.notes) {
    RecordEvent(turn, job, note.name, job.known ? job.known->version : 0, note.reason);
  }
  counters.windows_given_up += outcome.num_given_up;
  job.windows_given_up += outcome.num_given_up;
  if (!outcome.completed) return;
  ++counters.windows;
  job.covered_step = job.windows.complete.back().last_step;
  if (outcome.measured) {
    NoteMeasured(turn, job);
  } else {
    ++counters.windows_unmeasured;
  }
  WatchWindow(turn.state, job);
  MaybeSolve(turn, job);
}

// Loads of a job without ranks are of no use: its next decision needs new ones.
void DropUnusedLoads(const State& state, Job& job, absl::Time now) {
  if (HasSession(job) || now - job.unattended_since < state.config.session_grace) return;
  DropLoads(job.windows);
}

Speaker SpeakerOf(State& state, SessionId session, const Seat& seat) {
  Job& job = state.jobs.at(seat.job);
  const bool is_current = job.current && job.current->name == seat.incarnation;
  Incarnation& incarnation = is_current ? *job.current : *job.candidate;
  return {job, incarnation, incarnation.ranks[seat.rank], seat.rank, session};
}

void On(Turn& turn, const SessionMessage& event) {
  const auto found = turn.state.seats.find(event.session);
  if (found != turn.state.seats.end()) {
    const Speaker speaker = SpeakerOf(turn.state, event.session, found->second);
    Job& job = speaker.job;
    std::visit([&](const auto& message) { OnMessage(turn, speaker, message); }, event.message);
    StoreJobIfDue(turn, job);
  } else if (const auto* hello = std::get_if<wire::Hello>(&event.message)) {
    HandleHello(turn, event.session, *hello);
    const auto job = turn.state.jobs.find(hello->job);
    if (job != turn.state.jobs.end()) StoreJobIfDue(turn, job->second);
  } else {
    CloseRefused(turn, event.session, absl::StrCat("session ", event.session),
                 absl::InvalidArgumentError("the first message of a session must be Hello"));
  }
}

void On(Turn& turn, const SessionClosed& event) {
  const auto found = turn.state.seats.find(event.session);
  if (found == turn.state.seats.end()) return;
  HandleAway(turn, SpeakerOf(turn.state, event.session, found->second), event.reason);
}

void On(Turn& turn, const Solved& event) {
  HandleSolved(turn, event);
  const auto job = turn.state.jobs.find(event.job);
  if (job != turn.state.jobs.end()) StoreJobIfDue(turn, job->second);
}

void On(Turn& turn, const SolveStarted& event) { HandleSolveStarted(turn, event); }

// The Welcome behind the StoreTerm was not sent: that rank tries again later.
void OnTermNotStored(Turn& turn, SessionId last_hello, const absl::Status& status) {
  turn.state.term_stored = false;
  const auto found = turn.state.seats.find(last_hello);
  if (found == turn.state.seats.end()) return;
  const Speaker speaker = SpeakerOf(turn.state, last_hello, found->second);
  if (speaker.job.first_hello == last_hello) speaker.job.first_hello = 0;
  CloseRank(turn, speaker.incarnation, speaker.rank,
            absl::UnavailableError(absl::StrCat("the term cannot be stored: ", status.ToString())));
}

// What a failed Store was for was not sent either; a proposal of that decision never was made.
void DropUnsent(Turn& turn, Job& job, const absl::Status& status) {
  job.store_error = status;
  job.stored.reset();
  job.tell_memory = Tell::kAll;  // those that it was sent to behind the write did not get it
  if (!job.proposal || job.proposal->turn + 1 != turn.state.turn) return;
  job.proposal.reset();
  job.chunks = {};
  SettlePlan(turn, job, absl::StrCat("it cannot be stored: ", status.ToString()));
  EnterIdleOrHeld(turn, job);
}

void OnJobNotStored(Turn& turn, Job& job, const absl::Status& status) {
  RecordEvent(turn, job, "store_failed", job.known ? job.known->version : 0,
              absl::StrCat("the job cannot be stored: ", status.ToString()));
  DropUnsent(turn, job, status);
}

void On(Turn& turn, const StoreFailed& event) {
  // Effects behind the one that failed were not executed, a StoreTerm maybe among them.
  if (turn.state.term_turn + 1 == turn.state.turn) turn.state.term_stored = false;
  UndoChange(turn, event.status);
  const SessionId last_hello = std::exchange(turn.state.last_hello, 0);
  const std::string dropped = std::exchange(turn.state.last_stored_job, "");
  if (event.job.empty()) {
    // A Store that came after the term in the same decision was not executed either.
    if (const auto job = turn.state.jobs.find(dropped); job != turn.state.jobs.end()) {
      DropUnsent(turn, job->second, event.status);
    }
    OnTermNotStored(turn, last_hello, event.status);
  } else if (const auto job = turn.state.jobs.find(event.job); job != turn.state.jobs.end()) {
    OnJobNotStored(turn, job->second, event.status);
  }
}

void On(Turn& turn, const Change& event) { HandleChange(turn, event); }

void On(Turn& turn, const ReserveVersion& event) { HandleReserveVersion(turn, event); }

// One in a Tick, behind all that the Tick is about: it may write.
void ServeOneCandidate(Turn& turn) {
  for (auto& [name, job] : turn.state.jobs) {
    const bool waits = job.candidate.has_value();
    ServeCandidate(turn, job);
    if (waits && !job.candidate) return;
  }
}

// Writes the term or one job whose write failed or was left for later, as the last effect of a
// Tick: its failure drops nothing else. Waits while the same decision writes already: were that to
// fail, nobody would learn that this was not even tried.
void StoreWhatIsDue(Turn& turn) {
  State& state = turn.state;
  const std::vector<Effect>& effects = turn.decision.effects;
  if (std::any_of(effects.begin(), effects.end(), [](const Effect& effect) {
        return std::holds_alternative<Store>(effect) || std::holds_alternative<StoreTerm>(effect);
      })) {
    return;
  }
  if (!state.term_stored) {
    if (turn.now - state.term_attempt >= state.config.store_retry) StoreTermIfNeeded(turn);
    return;
  }
  for (auto& [name, job] : turn.state.jobs) {
    if (!MayStore(job)) continue;
    const bool retry =
        !job.store_error.ok() && turn.now - job.store_attempt >= turn.state.config.store_retry;
    if (!retry && !(job.write_due && job.store_error.ok())) continue;
    StoreJob(turn, job);
    return;
  }
}

void On(Turn& turn, const Tick& tick) {
  NoteDroppedReports(turn.state, tick, turn.now);
  for (auto& [name, job] : turn.state.jobs) {
    EndLostIncarnations(turn, job);
    CheckProposalDeadline(turn, job);
    CheckSolveDeadline(turn, job);
    NudgeHeld(turn, job);
    WatchState(turn, job);
    WatchStall(turn, job);
    CheckPace(turn, job);
    DropUnusedLoads(turn.state, job, turn.now);
  }
  ExpireJobs(turn);
  ServeOneCandidate(turn);
  StoreWhatIsDue(turn);
}

void On(Turn& turn, const DrainRequested& event) {
  turn.state.draining = true;
  const auto grace_ms = absl::ToInt64Milliseconds(event.grace);
  const wire::Drain drain{static_cast<int32_t>(std::clamp<int64_t>(grace_ms, 0, INT32_MAX))};
  for (const auto& [session, seat] : turn.state.seats) {
    SendOn(turn, session, drain);
  }
  for (auto& [name, job] : turn.state.jobs) {
    if (job.phase == Phase::kSolving) AbandonSolve(turn, job, "kept, the daemon drains", false);
    if (job.phase == Phase::kPreparing) StartRetract(turn, job, "the daemon drains", false);
    job.chunks = {};
  }
  turn.decision.reason = "the daemon drains: no more proposals";
}

void Restore(State& state, StoredJob stored, absl::Time now) {
  Job& job = state.jobs[stored.job];
  job.name = stored.job;
  job.phase_since = stored.end ? stored.end->at : now;
  job.nudged_at = now;
  job.next_version = std::max(stored.next_version, stored.version + 1);
  for (const RanVersion& ran : stored.history) NoteRan(job, ran.version, ran.digest);
  if (stored.placement) {
    const Digest digest = DigestOf(*stored.placement);
    NoteRan(job, stored.version, digest);
    job.known = Known{stored.version, digest,
                      std::make_shared<const Placement>(*std::move(stored.placement))};
  }
  job.stored = StoreStamp{stored.version, job.next_version,
                          job.known ? job.known->digest : Digest(), stored.end};
  Recall(state, job, stored.memory);
  // Its stragglers are refused after a restart as they were before.
  if (stored.end && stored.end->how != RunEnding::kLost) {
    const bool is_newest = stored.end->incarnation == job.remembered;
    AddGone(job, {stored.end->incarnation, is_newest ? job.launch : 0});
  }
  job.ended_before = std::move(stored.end);
  job.memory_is_ours = true;
  job.term = std::max(state.term, job.memory_term + 1);
  if (job.launch > 0 && !job.ended_before) job.owner_due = now + state.config.session_grace;
  // How a run ended says more than that it had been stopped.
  if (!job.quarantine.empty()) job.phase = Phase::kQuarantine;
  job.requests.assign(std::make_move_iterator(stored.requests.begin()),
                      std::make_move_iterator(stored.requests.end()));
  job.plans.assign(std::make_move_iterator(stored.plans.begin()),
                   std::make_move_iterator(stored.plans.end()));
}

// The decision before was executed in full, unless this event says otherwise.
void NoteExecuted(State& state, const Event& event) {
  ++state.turn;
  if (std::holds_alternative<StoreFailed>(event)) return;
  state.undo.reset();
  const auto job = state.jobs.find(state.last_stored_job);
  if (job != state.jobs.end()) job->second.store_error = absl::OkStatus();
  state.last_stored_job.clear();
  state.last_hello = 0;
}

}  // namespace

Core::Core(Config config, int64_t stored_term, std::vector<StoredJob> stored_jobs, absl::Time now)
    : state_(std::make_unique<State>()) {
  state_->config = std::move(config);
  state_->term = stored_term + 1;
  for (StoredJob& stored : stored_jobs) Restore(*state_, std::move(stored), now);
}

Core::~Core() = default;

Decision Core::Handle(const Event& event, absl::Time now) {
  NoteExecuted(*state_, event);
  Turn turn{*state_, now, {}};
  std::visit([&turn](const auto& one) { On(turn, one); }, event);
  return std::move(turn.decision);
}

int64_t Core::term() const { return state_->term; }

}  // namespace eplb::core
