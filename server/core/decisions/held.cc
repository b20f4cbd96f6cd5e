#include "server/core/decisions/held.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/decision/rebalance.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/proposal.h"
#include "server/core/state/chunking.h"
#include "server/core/state/memory.h"
#include "server/core/state/sentences.h"

namespace eplb::core {
namespace {

bool Runs(const Rank& rank, const Known& known) {
  return rank.running_version == known.version && rank.running_digest == known.digest;
}

bool IsHeldAndLive(const Job& job) {
  return job.phase == Phase::kHeld && job.current && job.current->ending == Ending::kLive;
}

// A rank whose version is that of rank 0 but whose digest is not; -1 when there is none.
int32_t FindOtherDigest(const Incarnation& incarnation) {
  const Rank& first = incarnation.ranks.front();
  for (int32_t index = 1; index < incarnation.world_size(); ++index) {
    const Rank& rank = incarnation.ranks[index];
    if (rank.running_version == first.running_version &&
        rank.running_digest != first.running_digest) {
      return index;
    }
  }
  return -1;
}

bool AllRunTheSame(const Incarnation& incarnation) {
  const Rank& first = incarnation.ranks.front();
  return std::all_of(incarnation.ranks.begin(), incarnation.ranks.end(), [&first](const Rank& r) {
    return r.ready_version == 0 && r.running_version == first.running_version &&
           r.running_digest == first.running_digest;
  });
}

// True when the body of what `rank` runs is known now: the newest known one, or the static layout.
bool Recognise(Job& job, const Rank& rank) {
  if (job.known && job.known->digest == rank.running_digest) {
    job.known->version = rank.running_version;
    return true;
  }
  Placement initial = Placement::Static(job.current->topology);
  if (DigestOf(initial) != rank.running_digest) return false;
  job.known = Known{rank.running_version, rank.running_digest,
                    std::make_shared<const Placement>(std::move(initial))};
  return true;
}

// Asks the first connected rank at or after `from`, round the world.
void AskForBody(Turn& turn, Job& job, int32_t from) {
  const int32_t world_size = job.current->world_size();
  for (int32_t i = 0; i < world_size; ++i) {
    const int32_t index = (from + i) % world_size;
    const Rank& rank = job.current->ranks[index];
    if (rank.session == 0) continue;
    job.asked = {index, rank.session, turn.now};
    SendTo(turn, rank, wire::NeedPlacement{rank.running_digest});
    return;
  }
  job.asked = {};
}

bool IsWaitingForBody(const Job& job) {
  return job.asked.session != 0 && job.current->ranks[job.asked.rank].session == job.asked.session;
}

void RetractLeftovers(Turn& turn, const Job& job) {
  for (const Rank& rank : job.current->ranks) {
    if (rank.ready_version == 0) continue;
    SendTo(turn, rank, wire::Retract{rank.ready_version, "it was proposed before this state"});
  }
}

// A layout of another shape under a number that was given out before, for which no placement is
// kept: rank 0 could not ask for a fresh one. The ranks are the authority on what runs, so it is
// told, once, and not refused.
void TellUsedNumber(Turn& turn, Job& job) {
  Incarnation& incarnation = *job.current;
  const int64_t running = incarnation.ranks.front().running_version;
  const int64_t fresh = std::exchange(incarnation.fresh_version, 0);
  if (running >= fresh || std::exchange(incarnation.reuse_told, true)) return;
  RecordEvent(turn, job, "version_reused", running,
              absl::StrCat("incarnation ", incarnation.name, " has another shape than the one ",
                           "before and began under version ", running,
                           ", which was in use before it, because its rank 0 was not told a fresh ",
                           "number; the next version is ", job.next_version));
}

}  // namespace

void EnterHeld(Turn& turn, Job& job, const std::string& reason) {
  StopSolve(turn, job);
  job.chunks = {};
  job.asked = {};
  SetPhase(turn, job, Phase::kHeld);
  RecordEvent(turn, job, "held", job.known ? job.known->version : 0, reason);
  if (!job.current) return;  // it was restored, and no rank has come yet
  RetractLeftovers(turn, job);
  TryRelease(turn, job);
}

void TryRelease(Turn& turn, Job& job) {
  if (!IsHeldAndLive(job) || job.current->num_hello < job.current->world_size()) return;
  if (const int32_t other = FindOtherDigest(*job.current); other >= 0) {
    const Rank& first = job.current->ranks.front();
    Quarantine(turn, job,
               absl::StrCat("rank 0 and rank ", other, " run version ", first.running_version,
                            " with different digests ", ShortHex(first.running_digest), " and ",
                            ShortHex(job.current->ranks[other].running_digest)));
    return;
  }
  if (!AllRunTheSame(*job.current)) return;
  const Rank& first = job.current->ranks.front();
  if (!Recognise(job, first)) {
    if (!IsWaitingForBody(job)) AskForBody(turn, job, 0);
    return;
  }
  job.asked = {};
  job.refusal.clear();
  NoteRan(job, job.known->version, job.known->digest);
  job.windows.placements.Add(job.known->version, job.known->placement);
  SetPhase(turn, job, Phase::kIdle);
  if (job.memory_term < job.term) Remember(job);  // that this daemon leads it is stored
  StoreJobIfChanged(turn, job);
  SettleOldPlan(turn, job);
  RecordEvent(turn, job, "released", first.running_version,
              absl::StrCat("all ", job.current->world_size(), " ranks run version ",
                           first.running_version, " with digest ", ShortHex(first.running_digest)));
  if (const int32_t layers = LayersPerChunk(job); layers < job.settings.layers_per_chunk) {
    RecordEvent(turn, job, "chunks_limited", first.running_version,
                absl::StrCat("chunks have at most ", CountText(layers, "layer"), ", not ",
                             job.settings.layers_per_chunk,
                             " as the settings allow: a rank's staging holds no more"));
  }
  TellUsedNumber(turn, job);
}

void EnterIdleOrHeld(Turn& turn, Job& job) {
  const Incarnation& incarnation = *job.current;
  for (int32_t index = 0; index < incarnation.world_size(); ++index) {
    const Rank& rank = incarnation.ranks[index];
    if (rank.ready_version != 0 || !Runs(rank, *job.known)) {
      EnterHeld(
          turn, job,
          absl::StrCat(
              "rank ", index, " runs version ", rank.running_version,
              rank.ready_version == 0 ? "" : absl::StrCat(" and is READY for ", rank.ready_version),
              ", the placement in force is version ", job.known->version));
      return;
    }
  }
  // A rank may have brought it from another daemon while answers were due here.
  SetPhase(turn, job, job.quarantine.empty() ? Phase::kIdle : Phase::kQuarantine);
}

void Recheck(Turn& turn, Job& job, int32_t rank) {
  if (job.phase == Phase::kHeld) {
    TryRelease(turn, job);
    return;
  }
  if (job.phase != Phase::kIdle && job.phase != Phase::kSolving) return;
  const Rank& changed = job.current->ranks[rank];
  if (changed.ready_version == 0 && Runs(changed, *job.known)) return;
  StopSolve(turn, job);
  EnterIdleOrHeld(turn, job);
}

void HandlePlacementBody(Turn& turn, Speaker speaker, const wire::PlacementBody& body) {
  Job& job = speaker.job;
  if (!speaker.is_current() || !IsHeldAndLive(job)) return;
  if (body.digest != speaker.rank.running_digest) return;  // switched since it was asked
  if (!(body.placement.topology() == speaker.incarnation.topology) ||
      DigestOf(body.placement) != body.digest) {
    CloseRank(turn, speaker.incarnation, speaker.rank,
              absl::InvalidArgumentError(absl::StrCat(
                  "placement body: its maps do not have the shape of the job and the digest ",
                  ShortHex(body.digest))));
    TryRelease(turn, job);
    return;
  }
  job.known = Known{speaker.rank.running_version, body.digest,
                    std::make_shared<const Placement>(body.placement)};
  TryRelease(turn, job);
}

void NudgeHeld(Turn& turn, Job& job) {
  const Config& config = turn.state.config;
  if (job.phase != Phase::kHeld || turn.now - job.nudged_at < config.prepare_deadline) return;
  job.nudged_at = turn.now;
  if (!IsHeldAndLive(job)) return;
  if (!job.stuck_recorded) {
    job.stuck_recorded = true;
    RecordEvent(turn, job, "stuck", job.known ? job.known->version : 0,
                absl::StrCat("HELD, waiting for ", WaitingFor(job)));
  }
  RetractLeftovers(turn, job);
  if (IsWaitingForBody(job)) AskForBody(turn, job, job.asked.rank + 1);
}

}  // namespace eplb::core
