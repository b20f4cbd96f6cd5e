#include "server/core/turn.h"

#include <algorithm>
#include <utility>

namespace eplb::core {

void SendTo(Turn& turn, const Rank& rank, wire::DownMessage message) {
  if (rank.session != 0) SendOn(turn, rank.session, std::move(message));
}

void SendOn(Turn& turn, SessionId session, wire::DownMessage message) {
  turn.decision.effects.emplace_back(Send{session, std::move(message)});
}

void SendToAll(Turn& turn, const Incarnation& incarnation, const wire::DownMessage& message) {
  for (const Rank& rank : incarnation.ranks) SendTo(turn, rank, message);
}

void CloseRank(Turn& turn, Incarnation& incarnation, Rank& rank, absl::Status status) {
  if (rank.session == 0) return;
  turn.decision.effects.emplace_back(Close{rank.session, std::move(status)});
  turn.state.seats.erase(rank.session);
  rank.session = 0;
  rank.away_since = turn.now;
  --incarnation.num_connected;
}

void CloseAll(Turn& turn, Incarnation& incarnation, const absl::Status& status) {
  for (Rank& rank : incarnation.ranks) CloseRank(turn, incarnation, rank, status);
}

void RecordEvent(Turn& turn, Job& job, const std::string& name, int64_t version,
                 const std::string& reason) {
  turn.decision.effects.emplace_back(Record{JobEvent{job.name, name, version, reason}});
  turn.decision.reason = reason;
  job.last_reason = reason;
}

void SetPhase(Turn& turn, Job& job, Phase phase) {
  job.phase = phase;
  job.phase_since = turn.now;
  job.nudged_at = turn.now;
  job.stuck_recorded = false;
}

void StoreTermIfNeeded(Turn& turn) {
  if (turn.state.term_stored) return;
  turn.decision.effects.emplace_back(StoreTerm{turn.state.term});
  turn.state.term_stored = true;
}

void StoreJob(Turn& turn, Job& job) {
  const Known& known = *job.known;
  turn.decision.effects.emplace_back(
      Store{StoredJob{job.name, known.version, job.next_version, *known.placement}});
  job.stored = StoreStamp{known.version, job.next_version, known.digest};
  job.store_attempt = turn.now;
  turn.state.last_stored_job = job.name;
}

void StoreJobIfChanged(Turn& turn, Job& job) {
  const StoreStamp stamp{job.known->version, job.next_version, job.known->digest};
  if (job.stored == stamp) return;
  StoreJob(turn, job);
}

void RaiseNextVersion(Job& job, int64_t version) {
  job.next_version = std::max(job.next_version, version + 1);
}

}  // namespace eplb::core
