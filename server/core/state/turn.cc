#include "server/core/state/turn.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clipped.h"
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
                                            "nacked",
                                            "retracting",
                                            "withdrawn",
                                            "held",
                                            "released",
                                            "chunks_limited",
                                            "version_reused",
                                            "incarnation_started",
                                            "incarnation_ended",
                                            "incarnation_resumed",
                                            "end_amended",
                                            "taken_over",
                                            "stepped_down",
                                            "stalled",
                                            "stalled_over",
                                            "memory_recalled",
                                            "vote_every_differs"};

// False when the budget is used up; the event is counted then.
bool MayRecord(Turn& turn, Job& job, const std::string& name) {
  const auto* const end = std::end(kRepeatable);
  if (std::find(std::begin(kRepeatable), end, name) == end) return true;
  if (Spend(job.event_budget, turn.now)) return true;
  ++job.events_left_out;
  ++turn.state.counters.events_left_out;
  return false;
}

void Append(Turn& turn, Job& job, const std::string& name, int64_t version, std::string reason) {
  if (const int64_t left_out = std::exchange(job.events_left_out, 0); left_out > 0) {
    absl::StrAppend(&reason, "; ", left_out,
                    " events that ranks caused were left out of this log before this one");
  }
  turn.decision.effects.emplace_back(Record{JobEvent{.job = job.name,
                                                     .name = name,
                                                     .term = job.term,
                                                     .version = version,
                                                     .reason = std::move(reason)}});
}

StoreStamp StampOf(const Job& job) {
  const Known known = job.known.value_or(Known{});
  StoreStamp stamp{
      .version = known.version, .next_version = job.next_version, .digest = known.digest};
  if (const RunEnd* end = EndOf(job)) stamp.end = *end;
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

void SendTo(Turn& turn, const Rank& rank, wire::DownMessage message) {
  if (rank.session != 0) SendOn(turn, rank.session, std::move(message));
}

void SendOn(Turn& turn, SessionId session, wire::DownMessage message) {
  turn.decision.effects.emplace_back(Send{session, std::move(message)});
}

void SendToAll(Turn& turn, const Incarnation& incarnation, const wire::DownMessage& message) {
  for (const Rank& rank : incarnation.ranks) SendTo(turn, rank, message);
}

void CloseRefused(Turn& turn, SessionId session, const std::string& who, absl::Status status) {
  const bool refused = !absl::IsUnavailable(status) && !absl::IsAborted(status);
  const std::string why = wire::Clipped({status.message().data(), status.message().size()});
  status = absl::Status(status.code(), why);  // it may repeat what was said
  turn.decision.reason = absl::StrCat(who, " is refused: ", why);
  if (refused) ++turn.state.counters.refused;
  turn.decision.effects.emplace_back(Close{session, std::move(status), refused ? who : ""});
}

void CloseRank(Turn& turn, Incarnation& incarnation, Rank& rank, absl::Status status) {
  if (rank.session == 0) return;
  const auto index = &rank - incarnation.ranks.data();
  if (absl::IsInvalidArgument(status)) {
    CloseRefused(turn, rank.session,
                 absl::StrCat("rank ", index, " of incarnation ", incarnation.name),
                 std::move(status));
  } else {
    turn.decision.effects.emplace_back(Close{rank.session, std::move(status)});
  }
  turn.state.seats.erase(rank.session);
  rank.session = 0;
  rank.away_since = turn.now;
  --incarnation.num_connected;
}

void CloseAll(Turn& turn, Incarnation& incarnation, const absl::Status& status) {
  for (Rank& rank : incarnation.ranks) CloseRank(turn, incarnation, rank, status);
}

void RecordEvent(Turn& turn, Job& job, const std::string& name, int64_t version,
                 const std::string& whole_reason) {
  std::string reason = wire::Clipped(whole_reason, kMaxReason);
  turn.decision.reason = reason;
  job.last_reason = reason;
  if (MayRecord(turn, job, name)) Append(turn, job, name, version, std::move(reason));
}

void RecordNotice(Turn& turn, Job& job, const std::string& name, const std::string& reason) {
  if (!MayRecord(turn, job, name)) return;
  Append(turn, job, name, job.known ? job.known->version : 0, wire::Clipped(reason, kMaxReason));
}

void RecordChange(Turn& turn, JobEvent event) {
  event.reason = wire::Clipped(event.reason, kMaxReason);
  turn.decision.reason = event.reason;
  turn.decision.effects.emplace_back(Record{std::move(event)});
}

void StopSolve(Turn& turn, Job& job) {
  if (job.phase == Phase::kSolving && job.solving.id != 0) {
    turn.decision.effects.emplace_back(CancelSolve{job.name, job.solving.id});
  }
  job.solving = {};
}

void SetPhase(Turn& turn, Job& job, Phase phase) {
  if (phase != Phase::kSolving) StopSolve(turn, job);
  job.phase = phase;
  job.phase_since = turn.now;
  job.nudged_at = turn.now;
  job.stuck_recorded = false;
  job.watched = false;
}

void StoreTermIfNeeded(Turn& turn) {
  if (turn.state.term_stored) return;
  turn.decision.effects.emplace_back(StoreTerm{turn.state.term});
  turn.state.term_stored = true;
  turn.state.term_turn = turn.state.turn;
  turn.state.term_attempt = turn.now;
}

bool BelongsInStore(const Job& job) {
  const bool must_not_forget = job.paused || !job.quarantine.empty() || !job.patch.empty();
  return job.known || must_not_forget || job.stored || !job.store_error.ok();
}

bool MayStore(const Job& job) {
  return BelongsInStore(job) && (!job.proposal || job.phase == Phase::kQuarantine);
}

void StoreJob(Turn& turn, Job& job, std::optional<DoneRequest> done) {
  job.stored = StampOf(job);
  StoredJob stored{.job = job.name,
                   .version = job.stored->version,
                   .next_version = job.next_version,
                   .memory = MemoryOf(job),
                   .end = job.stored->end,
                   .done = std::move(done)};
  if (job.known) stored.placement = *job.known->placement;
  turn.decision.effects.emplace_back(Store{std::move(stored)});
  job.store_attempt = turn.now;
  job.write_due = false;
  turn.state.last_stored_job = job.name;
  TellMemory(turn, job);
}

void StoreJobIfDue(Turn& turn, Job& job) {
  if (!BelongsInStore(job)) {
    TellMemory(turn, job);
  } else if (job.write_due && job.store_error.ok() && MayStore(job)) {
    StoreJob(turn, job);
  }
}

void StoreJobIfChanged(Turn& turn, Job& job) {
  if (job.stored != StampOf(job)) StoreJob(turn, job);
}

void RaiseNextVersion(Job& job, int64_t version) {
  job.next_version = std::max(job.next_version, version + 1);
}

}  // namespace eplb::core
