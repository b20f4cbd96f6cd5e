#include "server/core/state/decision_context.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/foreign_text.h"
#include "server/core/state/ending.h"
#include "server/core/state/memory.h"

namespace eplb::core {
namespace {

constexpr size_t kMaxReason = 2048;  // bytes of an event's

// Each is caused by one message of one rank, or by a stream that it opens or ends.
constexpr std::string_view kRepeatable[] = {"report_short",
                                            "report_ahead",
                                            "window_dropped",
                                            "window_incomplete",
                                            "window_complete_again",
                                            "placements_differ",
                                            "splits_differ",
                                            "nacked",
                                            "cancelling",
                                            "withdrawn",
                                            "recovering",
                                            "released",
                                            "version_reused",
                                            "run_started",
                                            "run_ended",
                                            "run_resumed",
                                            "end_amended",
                                            "taken_over",
                                            "stepped_down",
                                            "stalled",
                                            "stalled_over",
                                            "not_counting",
                                            "counting",
                                            "memory_recalled",
                                            "store_behind",
                                            "vote_every_differs"};

// False when the budget is used up; the event is counted then.
bool MayRecord(DecisionContext& context, Job& job, const std::string& name) {
  const auto* const end = std::end(kRepeatable);
  if (std::find(std::begin(kRepeatable), end, name) == end) return true;
  if (Spend(job.budgets.events, context.now)) return true;
  ++job.budgets.events_left_out;
  ++context.state.counters.events_left_out;
  return false;
}

void Append(DecisionContext& context, Job& job, const std::string& name, int64_t version,
            std::string reason) {
  if (const int64_t left_out = std::exchange(job.budgets.events_left_out, 0); left_out > 0) {
    absl::StrAppend(&reason, "; ", left_out,
                    " events that ranks caused were left out of this log before this one");
  }
  Record record = RecordOf(job, name, reason);
  record.event.set_version(static_cast<uint64_t>(version));
  context.decision.effects.emplace_back(std::move(record));
}

StoreStamp StampOf(const Job& job) {
  const LastKnownPlacement known = job.last_known.value_or(LastKnownPlacement{});
  StoreStamp stamp{
      .version = known.version, .next_version = job.versions.next, .digest = known.digest};
  if (const v1::RunEnd* end = EndOf(job)) stamp.end = end->SerializeAsString();
  return stamp;
}

}  // namespace

bool Spend(Budget& budget, absl::Time now) {
  if (budget.filled != absl::InfinitePast()) {
    const double seconds = absl::ToDoubleSeconds(now - budget.filled);
    budget.left = std::min(Budget::kBurst, budget.left + seconds * Budget::kPerSecond);
  }
  budget.filled = now;
  if (budget.left < 1) return false;
  budget.left -= 1;
  return true;
}

void SendTo(DecisionContext& context, const Rank& rank, wire::DownMessage message) {
  if (rank.session != 0) SendOn(context, rank.session, std::move(message));
}

void SendOn(DecisionContext& context, SessionId session, wire::DownMessage message) {
  context.decision.effects.emplace_back(Send{session, std::move(message)});
}

void SendToAll(DecisionContext& context, const Run& run, const wire::DownMessage& message) {
  for (const Rank& rank : run.ranks) SendTo(context, rank, message);
}

void CloseRefused(DecisionContext& context, SessionId session, const std::string& who,
                  absl::Status status) {
  const bool refused = !absl::IsUnavailable(status) && !absl::IsAborted(status);
  const std::string why = Clipped({status.message().data(), status.message().size()});
  status = absl::Status(status.code(), why);  // it may repeat what was said
  context.decision.reason = absl::StrCat(who, " is refused: ", why);
  if (refused) ++context.state.counters.refused;
  context.decision.effects.emplace_back(Close{session, std::move(status), refused ? who : ""});
}

void CloseRank(DecisionContext& context, Run& run, Rank& rank, absl::Status status) {
  if (rank.session == 0) return;
  const auto index = &rank - run.ranks.data();
  if (absl::IsInvalidArgument(status)) {
    CloseRefused(context, rank.session, absl::StrCat("rank ", index, " of run ", run.name),
                 std::move(status));
  } else {
    context.decision.effects.emplace_back(Close{rank.session, std::move(status)});
  }
  context.state.bindings.erase(rank.session);
  rank.session = 0;
  rank.away_since = context.now;
  --run.num_connected;
}

void CloseAll(DecisionContext& context, Run& run, const absl::Status& status) {
  for (Rank& rank : run.ranks) CloseRank(context, run, rank, status);
}

void RecordEvent(DecisionContext& context, Job& job, const std::string& name, int64_t version,
                 const std::string& whole_reason) {
  std::string reason = Clipped(whole_reason, kMaxReason);
  context.decision.reason = reason;
  job.decisions.last_reason = reason;
  if (MayRecord(context, job, name)) Append(context, job, name, version, std::move(reason));
}

void RecordNotice(DecisionContext& context, Job& job, const std::string& name,
                  const std::string& reason) {
  if (!MayRecord(context, job, name)) return;
  Append(context, job, name, job.last_known ? job.last_known->version : 0,
         Clipped(reason, kMaxReason));
}

Record RecordOf(const Job& job, const std::string& name, const std::string& reason) {
  Record record{.term = job.term};
  record.event.set_job(job.name);
  record.event.set_name(name);
  if (job.last_known) record.event.set_version(static_cast<uint64_t>(job.last_known->version));
  record.event.set_reason(reason);
  return record;
}

void RecordChange(DecisionContext& context, Record record) {
  record.event.set_reason(Clipped(record.event.reason(), kMaxReason));
  context.decision.reason = record.event.reason();
  context.decision.effects.emplace_back(std::move(record));
}

void StopSolve(DecisionContext& context, Job& job) {
  if (job.solving.id != 0) {
    context.decision.effects.emplace_back(CancelSolve{job.name, job.solving.id});
  }
  job.solving = {};
}

void SetPhase(DecisionContext& context, Job& job, Phase phase) {
  const bool may_solve =
      phase == Phase::kSolving || phase == Phase::kPreparing || phase == Phase::kVoting;
  if (!may_solve) StopSolve(context, job);
  job.phase = phase;
  job.in_phase = {.since = context.now, .retried_at = context.now};
}

void StoreTermIfNeeded(DecisionContext& context) {
  if (context.state.term_stored) return;
  context.decision.effects.emplace_back(StoreTerm{context.state.term});
  context.state.term_stored = true;
  context.state.term_decision_count = context.state.decision_count;
  context.state.term_attempt = context.now;
}

bool BelongsInStore(const Job& job) {
  const bool must_not_forget =
      job.orders.paused || !job.quarantine.empty() || !job.orders.patch.empty();
  return job.last_known || must_not_forget || job.store.stamp || !job.store.error.ok();
}

bool MayStore(const Job& job) {
  return BelongsInStore(job) && (!job.proposal || job.phase == Phase::kQuarantine);
}

void StoreJob(DecisionContext& context, Job& job, std::optional<DoneRequest> done) {
  job.store.stamp = StampOf(job);
  StoredJob stored{.job = job.name,
                   .version = job.store.stamp->version,
                   .next_version = job.versions.next,
                   .memory = MemoryOf(job),
                   .done = std::move(done)};
  if (const v1::RunEnd* end = EndOf(job)) stored.end = *end;
  if (job.last_known) stored.placement = *job.last_known->placement;
  context.decision.effects.emplace_back(Store{std::move(stored)});
  job.store.attempted_at = context.now;
  job.store.due = false;
  context.state.last_stored_job = job.name;
  TellMemory(context, job);
}

void StoreLoadHistory(DecisionContext& context, Job& job) {
  StoredHistory& stored = job.decisions.stored_history;
  if (!stored.changed) return;
  const std::span<const TypicalLoad> loads = job.decisions.load_history.loads();
  context.decision.effects.emplace_back(
      StoreTypicalLoads{.job = job.name, .loads = {loads.begin(), loads.end()}});
  stored = {.at = context.now, .wait = std::min(2 * stored.wait, kMostBetweenHistories)};
}

void StoreJobIfDue(DecisionContext& context, Job& job) {
  if (!BelongsInStore(job)) {
    TellMemory(context, job);
  } else if (job.store.due && job.store.error.ok() && MayStore(job)) {
    StoreJob(context, job);
  }
}

void StoreJobIfChanged(DecisionContext& context, Job& job) {
  if (job.store.stamp != StampOf(job)) StoreJob(context, job);
}

Undo UndoOf(const DecisionContext& context, const Job& job, int64_t ticket,
            const std::string& verb) {
  const ReadersIn readers(context.lock);
  return {.decision_count = context.state.decision_count,
          .ticket = ticket,
          .verb = verb,
          .job = job,
          .counters = context.state.counters};
}

void RaiseNextVersion(Job& job, int64_t version) {
  job.versions.next = std::max(job.versions.next, version + 1);
}

}  // namespace eplb::core
