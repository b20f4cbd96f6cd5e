#include "server/core/core.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "server/core/admin.h"
#include "server/core/decisions/decide.h"
#include "server/core/decisions/gpu_speeds.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/proposal.h"
#include "server/core/decisions/recovery.h"
#include "server/core/decisions/saved_time.h"
#include "server/core/decisions/versions.h"
#include "server/core/decisions/watchdog.h"
#include "server/core/ranks/answers.h"
#include "server/core/ranks/expiry.h"
#include "server/core/ranks/hello.h"
#include "server/core/ranks/questions.h"
#include "server/core/ranks/report_interval.h"
#include "server/core/ranks/run.h"
#include "server/core/ranks/run_registry.h"
#include "server/core/ranks/stall.h"
#include "server/core/ranks/window_pace.h"
#include "server/core/state/counting.h"
#include "server/core/state/decision_context.h"
#include "server/core/state/memory.h"
#include "server/core/state/report_check.h"
#include "server/core/state/step_rate.h"
#include "server/core/state/windows.h"

namespace eplb::core {
namespace {

constexpr int64_t kMaxDropped = int64_t{1} << 32;  // steps, in one report
constexpr int64_t kMaxBytes = int64_t{1} << 48;    // received by a rank in one chunk
constexpr double kMaxPauseSeconds = 1e6;           // eleven days in one step

absl::Status CheckNumber(const char* field, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return InvalidInput(field, " is ", value, ", it must be in 0..", most);
}

absl::Status Check(const wire::Prepared& prepared) {
  return CheckNumber("prepared: version", prepared.version, kMaxNumber);
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
    status.Update(InvalidInput("applied: pause_seconds is ", applied.pause_seconds,
                               ", it must be in 0..", kMaxPauseSeconds));
  }
  return status;
}
absl::Status Check(const wire::PlacementBody&) { return absl::OkStatus(); }
absl::Status Check(const wire::Goodbye&) { return absl::OkStatus(); }
absl::Status Check(const wire::Moved& moved) {
  return CheckNumber("moved: term", moved.term, kMaxNumber);
}

// Checks the version in a rank's answer to a proposal.
template <class Message>
absl::Status CheckProposed(const Job& job, const Message& message) {
  if constexpr (std::is_same_v<Message, wire::Prepared>) {
    return CheckGivenOut(job, "prepared", message.version);
  } else if constexpr (std::is_same_v<Message, wire::Nack>) {
    return CheckGivenOut(job, "nack", message.version);
  } else if constexpr (std::is_same_v<Message, wire::Failed>) {
    return CheckGivenOut(job, "failed", message.version);
  } else if constexpr (std::is_same_v<Message, wire::Applied>) {
    return CheckGivenOut(job, "applied", message.version);
  }
  return absl::OkStatus();
}

template <class Message>
void OnMessage(DecisionContext& context, Sender sender, const Message& message) {
  absl::Status status = Check(message);
  status.Update(CheckProposed(sender.job, message));
  if (!status.ok()) {
    CloseRank(context, sender.run, sender.rank, std::move(status));
    return;
  }
  Handle(context, sender, message);
}

void OnMessage(DecisionContext& context, Sender sender, const wire::Hello&) {
  CloseRank(context, sender.run, sender.rank, InvalidInput("a second Hello on one session"));
}

// A Tick arrives every 100 ms. After a longer gap between two events the daemon did not run.
constexpr absl::Duration kStandstill = absl::Seconds(2);

absl::Status CheckStepSeconds(double seconds) {
  if (seconds >= 0 && seconds <= wire::kMaxStepSeconds) return absl::OkStatus();
  return InvalidInput("load report: step_seconds is ", seconds, ", expected 0..",
                      wire::kMaxStepSeconds);
}

absl::Status CheckReporter(const Run& run, int32_t rank) {
  if (run.reduce == wire::Reduce::kRoot && rank != 0) {
    return InvalidInput("load report: rank ", rank,
                        " reports, but the job adds its counts up and rank 0 alone reports them");
  }
  if (run.reduce == wire::Reduce::kRank && !run.grid.CountsTokens(RankId{rank})) {
    return InvalidInput("load report: rank ", rank, " reports, but of each ",
                        run.grid.expert_tensor_parallel(),
                        " ranks that see the same tokens only the first does");
  }
  return absl::OkStatus();
}

absl::Status CheckMaySplit(const Run& run, const wire::LoadReport& report) {
  if (run.split == SplitMode::kBatch || report.split_tokens.empty()) return absl::OkStatus();
  return InvalidInput("load report: it has splits of batches, but the run registered split equal");
}

absl::Status Check(const DecisionContext& context, Sender sender, const wire::LoadReport& report) {
  const Run& run = sender.run;
  const int64_t cells = int64_t{run.shape.num_layers} * run.shape.num_experts;
  const ReadersIn readers(context.lock, (std::ssize(report.earlier) + 1) * cells);
  absl::Status status = CheckReport(report, run.topology);
  status.Update(CheckMaySplit(run, report));
  status.Update(CheckNumber("load report: last_step", report.last_step, kMaxNumber));
  status.Update(CheckNumber("load report: dropped_steps", report.dropped_steps, kMaxDropped));
  status.Update(CheckStepSeconds(report.step_seconds));
  status.Update(CheckReporter(run, sender.index));
  return status;
}

// Windows that began earlier wait for ranks that are behind. While the daemon stood still no rank
// could report, so all windows wait anew.
absl::Time PatientSince(const State& state, absl::Time now) {
  if (now - state.resumed_at < kWindowPatience) return absl::InfinitePast();
  return now - kWindowPatience;
}

WindowLimits LimitsOf(const DecisionContext& context, const Run& run) {
  const Config& config = context.state.config;
  WindowLimits limits{.num_reporters = 1,
                      .report_every = run.report_every,
                      .next_report_every = run.report_interval_change.report_every,
                      .min_coverage = config.min_coverage,
                      .max_pending = config.max_pending_windows,
                      .max_complete = config.max_windows,
                      .patient_since = PatientSince(context.state, context.now),
                      .now = context.now,
                      .lock = context.lock};
  if (run.reduce == wire::Reduce::kRoot) return limits;
  const RankGrid& grid = run.grid;
  limits.grid = &grid;
  limits.num_reporters = grid.world_size() / grid.expert_tensor_parallel();
  limits.ranks_per_reporter = grid.expert_tensor_parallel();
  limits.pipeline_parallel_size = grid.pipeline_parallel_size();
  return limits;
}

// Looks at all jobs only when the windows of this one have grown.
void BoundLoads(State& state, Job& job, absl::Time now) {
  const int64_t bytes = BytesOf(job.windows);
  if (bytes > std::exchange(job.reports.window_bytes, bytes)) {
    std::vector<Windows*> windows;
    for (auto& [name, one] : state.jobs) windows.push_back(&one.windows);
    state.counters.windows_given_up +=
        BoundBytes(windows, state.config.max_window_bytes, PatientSince(state, now));
  }
}

// If a window needs several ranks to complete, windows far ahead would only push out windows that
// can still become complete.
StepClaim StepClaimOf(const Config& config, Run& run, int32_t rank, const wire::LoadReport& report,
                      const WindowLimits& limits) {
  const StepClaim claim = EvaluateStep(run, rank, report.last_step, config.max_pending_windows);
  const int32_t reporters = limits.num_reporters / limits.pipeline_parallel_size;
  const bool alone_completes = limits.min_coverage * reporters <= 1;
  return claim == StepClaim::kLeap && alone_completes ? StepClaim::kBelieved : claim;
}

void TellLeap(DecisionContext& context, Sender sender, const wire::LoadReport& report) {
  ++context.state.counters.reports_ahead;
  if (std::exchange(sender.rank.ahead_told, true)) return;
  const int64_t others = OthersStep(sender.run.front, sender.index);
  const std::string known = others < 0
                                ? "no other rank has reported a step near it"
                                : absl::StrCat("the other ranks are at most at step ", others);
  RecordEvent(context, sender.job, "report_ahead",
              sender.job.last_known ? sender.job.last_known->version : 0,
              absl::StrCat("rank ", sender.index, " reports steps ", report.first_step, "..",
                           report.last_step, ", ", known, "; such reports of it are left out"));
}

// How far the rank trained.
void TakeStep(DecisionContext& context, Sender sender, int64_t step) {
  Rank& rank = sender.rank;
  rank.step = std::max(rank.step, step);
  Advance(sender.run.front, sender.index, step);
  if (!sender.is_current() || sender.run.ending == Ending::kFinal) return;
  sender.job.step = std::max(sender.job.step, step);
  NoteStep(sender.run, step, context.now);
  RememberReportTime(sender.job);
}

// The newest complete window goes to the caller, who has room for more than the core needs.
void KeepNewest(DecisionContext& context, const Job& job, const Run& run, bool measured) {
  const Window& window = job.windows.complete.back();
  const double seconds = SecondsPerStep(run.rate);
  context.decision.effects.emplace_back(
      KeepWindow{job.name,
                 {.run_id = run.name,
                  .shape = run.shape,
                  .first_step = window.first_step,
                  .last_step = window.last_step,
                  .coverage = window.coverage,
                  .step_seconds = seconds > 0 ? std::optional(seconds) : std::nullopt,
                  .load = window.load,
                  .on_gpus = window.on_gpus,
                  .split = run.split,
                  .measured = measured ? job.windows.measured : std::nullopt}});
}

// NOT_COUNTING begins and ends with one event each.
void WatchCounting(DecisionContext& context, Job& job) {
  std::string seen = NotCountingReason(job);
  if (seen.empty() != job.reports.not_counting.empty()) {
    RecordNotice(context, job, seen.empty() ? "counting" : "not_counting",
                 seen.empty() ? "all reporting ranks count tokens again, in all layers" : seen);
  }
  job.reports.not_counting = std::move(seen);
}

void Handle(DecisionContext& context, Sender sender, const wire::LoadReport& report) {
  Job& job = sender.job;
  Run& run = sender.run;
  Counters& counters = context.state.counters;
  ++counters.reports;
  counters.report_cells += int64_t{run.shape.num_layers} * run.shape.num_experts;
  AddCapped(counters.dropped_steps, report.dropped_steps);
  AddCapped(sender.rank.dropped_steps, report.dropped_steps);
  if (report.step_seconds > 0) sender.rank.step_seconds = report.step_seconds;
  const WindowLimits limits = LimitsOf(context, run);
  const StepClaim claim = StepClaimOf(context.state.config, run, sender.index, report, limits);
  if (claim == StepClaim::kLeap) {
    TellLeap(context, sender, report);
    return;
  }
  sender.rank.reported_step = std::max(sender.rank.reported_step, report.last_step);
  NoteCounts(report, sender.rank);
  if (claim == StepClaim::kBelieved) TakeStep(context, sender, report.last_step);
  if (!sender.is_current() || run.ending != Ending::kLive) return;
  const ReportOutcome outcome = AddReport(job.windows, report, sender.index, limits);
  BoundLoads(context.state, job, context.now);
  for (const Note& note : outcome.notes) {
    RecordEvent(context, job, note.name, job.last_known ? job.last_known->version : 0, note.reason);
  }
  counters.windows_given_up += outcome.num_given_up;
  job.reports.windows_given_up += outcome.num_given_up;
  if (!outcome.completed) return;
  ++counters.windows;
  job.reports.covered_step = job.windows.complete.back().last_step;
  NoteSaved(context, job, outcome.measured);
  if (outcome.measured) {
    NoteMeasured(context, job);
  } else {
    ++counters.windows_unmeasured;
  }
  if (const int32_t longest = context.state.config.report_every_steps;
      longest > 0 && job.windows.newest.has_tokens && job.reports.overload.factor == 1 &&
      context.state.report_overload.factor == 1) {
    NoteWindowForPace(job, longest);
  }
  WatchCounting(context, job);
  KeepNewest(context, job, run, outcome.measured);
  WatchWindow(context, job);
  WatchGpuSpeeds(context, job);
  MaybeSolve(context, job);
}

void OnMessage(DecisionContext& context, Sender sender, const wire::LoadReport& report) {
  if (absl::Status status = Check(context, sender, report); !status.ok()) {
    CloseRank(context, sender.run, sender.rank, std::move(status));
    return;
  }
  Handle(context, sender, report);
}

// Windows of a job without ranks are of no use: its next decision needs new ones. Only the history
// of its loads stays.
void DropUnusedLoads(const State& state, Job& job, absl::Time now) {
  if (HasSession(job) || now - job.unattended_since < state.config.session_grace) return;
  DropLoads(job.windows);
  job.decisions
      .chooser = {};  // it keeps loads and placements, and begins again with the next window
}

Sender SenderOf(State& state, SessionId session, const SessionBinding& binding) {
  Job& job = state.jobs.at(binding.job);
  const bool is_current = job.current && job.current->name == binding.run_id;
  Run& run = is_current ? *job.current : *job.candidate;
  return {job, run, run.ranks[binding.rank], binding.rank, session};
}

void On(DecisionContext& context, const SessionMessage& event) {
  const auto found = context.state.bindings.find(event.session);
  if (found != context.state.bindings.end()) {
    const Sender sender = SenderOf(context.state, event.session, found->second);
    Job& job = sender.job;
    std::visit([&](const auto& message) { OnMessage(context, sender, message); }, event.message);
    StoreJobIfDue(context, job);
  } else if (const auto* hello = std::get_if<wire::Hello>(&event.message)) {
    HandleHello(context, event.session, *hello);
    const auto job = context.state.jobs.find(hello->job);
    if (job != context.state.jobs.end()) StoreJobIfDue(context, job->second);
  } else {
    CloseRefused(context, event.session, absl::StrCat("session ", event.session),
                 InvalidInput("the first message of a session must be Hello"));
  }
}

void On(DecisionContext& context, const SessionClosed& event) {
  const auto found = context.state.bindings.find(event.session);
  if (found == context.state.bindings.end()) return;
  HandleAway(context, SenderOf(context.state, event.session, found->second), event.reason);
}

void On(DecisionContext& context, const Solved& event) {
  HandleSolved(context, event);
  const auto job = context.state.jobs.find(event.job);
  if (job != context.state.jobs.end()) StoreJobIfDue(context, job->second);
}

void On(DecisionContext& context, const SolveStarted& event) { HandleSolveStarted(context, event); }

// The Welcome behind the StoreTerm was not sent: that rank tries again later.
void OnTermNotStored(DecisionContext& context, SessionId last_hello, const absl::Status& status) {
  context.state.term_stored = false;
  const auto found = context.state.bindings.find(last_hello);
  if (found == context.state.bindings.end()) return;
  const Sender sender = SenderOf(context.state, last_hello, found->second);
  if (sender.job.first_hello == last_hello) sender.job.first_hello = 0;
  CloseRank(context, sender.run, sender.rank,
            Unavailable("the term cannot be stored: ", status.ToString()));
}

// Takes back what was to be sent after a failed Store. A proposal of that decision was never made.
void DropUnsent(DecisionContext& context, Job& job, const absl::Status& status) {
  job.store.error = status;
  job.store.stamp.reset();
  job.memory.tell = Tell::kAll;  // those that it was sent to behind the write did not get it
  if (!job.proposal || job.proposal->decision_count + 1 != context.state.decision_count) return;
  StopSolve(context, job);
  job.proposal.reset();
  job.chunks = {};
  SettlePlan(context, job, absl::StrCat("it cannot be stored: ", status.ToString()));
  EnterIdleOrRecovery(context, job);
}

void OnJobNotStored(DecisionContext& context, Job& job, const absl::Status& status) {
  RecordEvent(context, job, "store_failed", job.last_known ? job.last_known->version : 0,
              absl::StrCat("the job cannot be stored: ", status.ToString()));
  DropUnsent(context, job, status);
}

void On(DecisionContext& context, const StoreFailed& event) {
  // Effects behind the one that failed were not executed, a StoreTerm maybe among them.
  if (context.state.term_decision_count + 1 == context.state.decision_count)
    context.state.term_stored = false;
  UndoChange(context, event.status);
  const SessionId last_hello = std::exchange(context.state.last_hello, 0);
  const std::string dropped = std::exchange(context.state.last_stored_job, "");
  if (event.job.empty()) {
    // A Store that came after the term in the same decision was not executed either.
    if (const auto job = context.state.jobs.find(dropped); job != context.state.jobs.end()) {
      DropUnsent(context, job->second, event.status);
    }
    OnTermNotStored(context, last_hello, event.status);
  } else if (const auto job = context.state.jobs.find(event.job); job != context.state.jobs.end()) {
    OnJobNotStored(context, job->second, event.status);
  }
  FailQuestions(context, event.status);
}

void On(DecisionContext& context, const Change& event) { HandleChange(context, event); }

void On(DecisionContext& context, const ReserveVersion& event) {
  HandleReserveVersion(context, event);
}

// One in a Tick, behind all that the Tick is about: it may write.
void ServeOneCandidate(DecisionContext& context) {
  for (auto& [name, job] : context.state.jobs) {
    const bool waits = job.candidate.has_value();
    ServeCandidate(context, job);
    if (waits && !job.candidate) return;
  }
}

// Writes the term or one job whose write failed or was left for later, as the last effect of a
// Tick: its failure drops nothing else. Waits while the same decision writes already: were that to
// fail, this would be skipped without a trace.
void StoreWhatIsDue(DecisionContext& context) {
  State& state = context.state;
  const std::vector<Effect>& effects = context.decision.effects;
  if (std::ranges::any_of(effects, [](const Effect& effect) {
        return std::holds_alternative<Store>(effect) || std::holds_alternative<StoreTerm>(effect);
      })) {
    return;
  }
  if (!state.term_stored) {
    if (context.now - state.term_attempt >= state.config.store_retry) StoreTermIfNeeded(context);
    return;
  }
  for (auto& [name, job] : context.state.jobs) {
    if (!MayStore(job)) continue;
    const bool retry = !job.store.error.ok() &&
                       context.now - job.store.attempted_at >= context.state.config.store_retry;
    if (!retry && !(job.store.due && job.store.error.ok())) continue;
    StoreJob(context, job);
    return;
  }
}

void On(DecisionContext& context, const PlanQuestion& question) {
  absl::StatusOr<Sender> sender = BeginQuestion(context, question);
  if (!sender.ok()) return Refuse(context, question.ticket, sender.status());
  const wire::LoadReport report = ReportOf(question, sender->rank);
  if (const absl::Status status = Check(context, *sender, report); !status.ok()) {
    return Refuse(context, question.ticket, status);
  }
  AwaitAnswer(context, *sender, question);
  Handle(context, *sender, report);
  StoreJobIfDue(context, sender->job);
}

void On(DecisionContext& context, const PlanSettled& settled) {
  HandleSettled(context, settled);
  const auto job = context.state.jobs.find(settled.job);
  if (job != context.state.jobs.end()) StoreJobIfDue(context, job->second);
}

void On(DecisionContext& context, const Tick& tick) {
  NoteDroppedReports(context.state, tick, context.now);
  for (auto& [name, job] : context.state.jobs) {
    EndIdleEngine(context, job);
    EndLostRuns(context, job);
    CheckProposalDeadline(context, job);
    CheckSolveDeadline(context, job);
    RetryRecovery(context, job);
    WatchState(context, job);
    WatchStall(context, job);
    CheckReportInterval(context, job);
    DropUnusedLoads(context.state, job, context.now);
  }
  ExpireJobs(context);
  ServeOneCandidate(context);
  StoreWhatIsDue(context);
}

void On(DecisionContext& context, const DrainRequested& event) {
  context.state.draining = true;
  for (auto& [name, job] : context.state.jobs) {  // before any Store
    StoreLoadHistory(context, job);
    StoreRepeatedPlan(context, job);
  }
  const auto grace_ms = absl::ToInt64Milliseconds(event.grace);
  const wire::Drain drain{static_cast<int32_t>(std::clamp<int64_t>(grace_ms, 0, INT32_MAX))};
  for (const auto& [session, binding] : context.state.bindings) {
    SendOn(context, session, drain);
  }
  for (auto& [name, job] : context.state.jobs) {
    if (job.solving.id != 0) AbandonSolve(context, job, "kept, the daemon drains", false);
    if (job.phase == Phase::kPreparing) StartCancel(context, job, "the daemon drains", false);
    job.chunks = {};
  }
  context.decision.reason = "the daemon drains: no more proposals";
}

// Restores the measured figures of a run that ended before the daemon started.
void RestoreMeasured(const v1::RunEnd& end, const v1::Window& window, Windows& windows) {
  if (window.run_id() != end.run_id() || !window.has_balancedness()) return;
  Measured& measured = windows.measured.emplace();
  measured.first_step = windows.newest.first_step = static_cast<int64_t>(window.first_step());
  measured.last_step = windows.newest.last_step = static_cast<int64_t>(window.last_step());
  windows.newest.coverage = window.coverage();
  windows.newest.has_tokens = true;
  const bool equal = window.split() == wire::SplitName(SplitMode::kEqual);
  measured.split = equal ? SplitMode::kEqual : SplitMode::kBatch;
  measured.balancedness = window.balancedness();
  if (window.has_balancedness_static()) {
    measured.balancedness_static = window.balancedness_static();
  }
  if (window.has_balancedness_without_eplb()) {
    measured.balancedness_without_eplb = window.balancedness_without_eplb();
  }
}

void Restore(State& state, StoredJob stored, absl::Time now) {
  Job& job = state.jobs[stored.job];
  job.name = stored.job;
  job.in_phase.since = stored.end ? absl::FromUnixMicros(stored.end->unix_micros()) : now;
  job.in_phase.retried_at = now;
  job.versions.next = std::max(stored.next_version, stored.version + 1);
  for (const RanVersion& ran : stored.history) NoteRan(job, ran.version, ran.digest);
  if (stored.placement) {
    const Digest digest = DigestOf(*stored.placement);
    NoteRan(job, stored.version, digest);
    job.last_known = LastKnownPlacement{
        stored.version, digest, std::make_shared<const Placement>(*std::move(stored.placement))};
  }
  job.store.stamp = StoreStamp{stored.version, job.versions.next,
                               job.last_known ? job.last_known->digest : Digest(),
                               stored.end ? stored.end->SerializeAsString() : ""};
  job.decisions.load_history = LoadHistory(std::move(stored.typical_loads));
  job.decisions.stored_history.at = now;
  Recall(state, job, stored.memory);
  // Its stragglers are refused after a restart as they were before.
  if (stored.end && stored.end->ending() != v1::RUN_ENDING_LOST) {
    const bool is_newest = stored.end->run_id() == job.owner.run_id;
    AddGone(job, {stored.end->run_id(), is_newest ? job.owner.run_number : 0});
  }
  if (stored.end && stored.newest_window) {
    RestoreMeasured(*stored.end, *stored.newest_window, job.windows);
  }
  job.owner.ended_before = std::move(stored.end);
  job.memory.is_ours = true;
  job.term = std::max(state.term, job.memory.term + 1);
  if (job.owner.run_number > 0 && !job.owner.ended_before)
    job.owner.due = now + state.config.session_grace;
  // How a run ended says more than that it had been stopped.
  if (!job.quarantine.empty()) job.phase = Phase::kQuarantine;
  job.orders.requests.assign(std::make_move_iterator(stored.requests.begin()),
                             std::make_move_iterator(stored.requests.end()));
  job.plans.assign(std::make_move_iterator(stored.plans.begin()),
                   std::make_move_iterator(stored.plans.end()));
  ForgetOldTimes(job);
}

// The decision before was executed in full, unless this event says otherwise.
void NoteExecuted(State& state, const Event& event) {
  ++state.decision_count;
  if (std::holds_alternative<StoreFailed>(event)) return;
  state.undo.reset();
  const auto job = state.jobs.find(state.last_stored_job);
  if (job != state.jobs.end()) job->second.store.error = absl::OkStatus();
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

Decision Core::Handle(const Event& event, absl::Time now, CoreLock* lock) {
  NoteExecuted(*state_, event);
  if (now - state_->last_event > kStandstill) state_->resumed_at = now;
  state_->last_event = now;
  DecisionContext context{.state = *state_, .now = now, .decision = {}, .lock = lock};
  std::visit([&context](const auto& one) { On(context, one); }, event);
  ServeEngines(context);
  return std::move(context.decision);
}

int64_t Core::term() const { return state_->term; }

}  // namespace eplb::core
