#include "server/core/decisions/recovery.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/text.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/proposal.h"
#include "server/core/decisions/versions.h"
#include "server/core/state/chunking.h"
#include "server/core/state/memory.h"
#include "server/core/state/sentences.h"

namespace eplb::core {
namespace {

bool Runs(const Rank& rank, const LastKnownPlacement& known) {
  return rank.running_version == known.version && rank.running_digest == known.digest;
}

bool IsRecoveringAndLive(const Job& job) {
  return job.phase == Phase::kRecovering && job.current && job.current->ending == Ending::kLive;
}

// A rank whose version is that of rank 0 but whose digest is not; -1 when there is none.
int32_t FindOtherDigest(const Run& run) {
  const Rank& first = run.ranks.front();
  for (int32_t index = 1; index < run.world_size(); ++index) {
    const Rank& rank = run.ranks[index];
    if (rank.running_version == first.running_version &&
        rank.running_digest != first.running_digest) {
      return index;
    }
  }
  return -1;
}

bool AllRunTheSame(const Run& run) {
  const Rank& first = run.ranks.front();
  return std::ranges::all_of(run.ranks, [&first](const Rank& r) {
    return r.prepared_version == 0 && r.running_version == first.running_version &&
           r.running_digest == first.running_digest;
  });
}

// True when the body of what `rank` runs is known now: the newest known one, or the static layout.
bool AdoptIfKnown(const DecisionContext& context, Job& job, const Rank& rank) {
  if (job.last_known && job.last_known->digest == rank.running_digest) {
    job.last_known->version = rank.running_version;
    return true;
  }
  std::shared_ptr<const Placement> initial;
  {
    const ReadersIn readers(context.lock);
    initial = std::make_shared<const Placement>(Placement::Static(job.current->topology));
    if (DigestOf(*initial) != rank.running_digest) return false;
  }
  job.last_known =
      LastKnownPlacement{rank.running_version, rank.running_digest, std::move(initial)};
  return true;
}

bool IsWhatItSays(const DecisionContext& context, const Run& run, const wire::PlacementBody& body) {
  const ReadersIn readers(context.lock);
  return body.placement.topology() == run.topology && DigestOf(body.placement) == body.digest;
}

// Asks the first connected rank at or after `from`, round the world.
void AskForBody(DecisionContext& context, Job& job, int32_t from) {
  const int32_t world_size = job.current->world_size();
  for (int32_t i = 0; i < world_size; ++i) {
    const int32_t index = (from + i) % world_size;
    const Rank& rank = job.current->ranks[index];
    if (rank.session == 0) continue;
    job.pending_fetch = {index, rank.session, context.now};
    SendTo(context, rank, wire::NeedPlacement{rank.running_digest});
    return;
  }
  job.pending_fetch = {};
}

bool IsWaitingForBody(const Job& job) {
  return job.pending_fetch.session != 0 &&
         job.current->ranks[job.pending_fetch.rank].session == job.pending_fetch.session;
}

void CancelLeftovers(DecisionContext& context, const Job& job) {
  for (const Rank& rank : job.current->ranks) {
    if (rank.prepared_version == 0) continue;
    SendTo(context, rank,
           wire::Cancel{rank.prepared_version,
                        "the daemon does not have this proposal in flight any more"});
  }
}

// A layout of another shape under a number that was given out before, for which no placement is
// kept: rank 0 could not ask for a fresh one. The ranks are the authority on what runs, so it is
// told, once, and not refused.
void TellUsedNumber(DecisionContext& context, Job& job) {
  Run& run = *job.current;
  const int64_t running = run.ranks.front().running_version;
  const int64_t fresh = std::exchange(run.fresh_version, 0);
  if (running >= fresh || std::exchange(run.reuse_told, true)) return;
  RecordEvent(
      context, job, "version_reused", running,
      absl::StrCat("run ", run.name, " has another shape than the one ",
                   "before and began under version ", running,
                   ", which was in use before it, because its rank 0 did not receive a fresh ",
                   "number; the next version is ", job.versions.next));
}

}  // namespace

void EnterRecovery(DecisionContext& context, Job& job, const std::string& reason) {
  StopSolve(context, job);
  job.chunks = {};
  job.pending_fetch = {};
  SetPhase(context, job, Phase::kRecovering);
  RecordEvent(context, job, "recovering", job.last_known ? job.last_known->version : 0, reason);
  if (!job.current) return;  // it was restored, and no rank has come yet
  CancelLeftovers(context, job);
  TryRelease(context, job);
}

void TryRelease(DecisionContext& context, Job& job) {
  if (!IsRecoveringAndLive(job) || job.current->num_hello < job.current->world_size()) return;
  if (const int32_t other = FindOtherDigest(*job.current); other >= 0) {
    const Rank& first = job.current->ranks.front();
    Quarantine(context, job,
               absl::StrCat("rank 0 and rank ", other, " run version ", first.running_version,
                            " with different digests ", ShortHex(first.running_digest), " and ",
                            ShortHex(job.current->ranks[other].running_digest)));
    return;
  }
  if (!AllRunTheSame(*job.current)) return;
  const Rank& first = job.current->ranks.front();
  if (!AdoptIfKnown(context, job, first)) {
    if (!IsWaitingForBody(job)) AskForBody(context, job, 0);
    return;
  }
  job.pending_fetch = {};
  job.refused.reason.clear();
  NoteRan(job, job.last_known->version, job.last_known->digest);
  job.windows.placements.Add(job.last_known->version, job.last_known->placement);
  SetPhase(context, job, Phase::kIdle);
  if (job.memory.term < job.term) Remember(job);  // so that the store has this daemon as leader
  StoreJobIfChanged(context, job);
  SettleOldPlan(context, job);
  RecordEvent(context, job, "released", first.running_version,
              absl::StrCat("all ", job.current->world_size(), " ranks run version ",
                           first.running_version, " with digest ", ShortHex(first.running_digest)));
  TellUsedNumber(context, job);
}

void EnterIdleOrRecovery(DecisionContext& context, Job& job) {
  const Run& run = *job.current;
  for (int32_t index = 0; index < run.world_size(); ++index) {
    const Rank& rank = run.ranks[index];
    if (rank.prepared_version != 0 || !Runs(rank, *job.last_known)) {
      EnterRecovery(context, job,
                    absl::StrCat("rank ", index, " runs version ", rank.running_version,
                                 rank.prepared_version == 0
                                     ? ""
                                     : absl::StrCat(" and is PREPARED for ", rank.prepared_version),
                                 ", the current placement is version ", job.last_known->version));
      return;
    }
  }
  // A rank may have brought it from another daemon while answers were due here.
  SetPhase(context, job,
           !job.quarantine.empty() ? Phase::kQuarantine
           : job.solving.id == 0   ? Phase::kIdle
                                   : Phase::kSolving);
}

void Recheck(DecisionContext& context, Job& job, int32_t rank) {
  if (job.phase == Phase::kRecovering) {
    TryRelease(context, job);
    return;
  }
  if (job.phase != Phase::kIdle && job.phase != Phase::kSolving) return;
  const Rank& changed = job.current->ranks[rank];
  if (changed.prepared_version == 0 && Runs(changed, *job.last_known)) return;
  StopSolve(context, job);
  EnterIdleOrRecovery(context, job);
}

void Handle(DecisionContext& context, Sender sender, const wire::PlacementBody& body) {
  Job& job = sender.job;
  if (!sender.is_current() || !IsRecoveringAndLive(job)) return;
  if (body.digest != sender.rank.running_digest) return;  // switched since it was asked
  if (!IsWhatItSays(context, sender.run, body)) {
    CloseRank(
        context, sender.run, sender.rank,
        InvalidInput("placement body: its maps do not have the shape of the job and the digest ",
                     ShortHex(body.digest)));
    TryRelease(context, job);
    return;
  }
  job.last_known = LastKnownPlacement{sender.rank.running_version, body.digest,
                                      std::make_shared<const Placement>(body.placement)};
  TryRelease(context, job);
}

void RetryRecovery(DecisionContext& context, Job& job) {
  const Config& config = context.state.config;
  if (job.phase != Phase::kRecovering ||
      context.now - job.in_phase.retried_at < config.prepare_deadline)
    return;
  job.in_phase.retried_at = context.now;
  if (!IsRecoveringAndLive(job)) return;
  if (!job.in_phase.stuck_recorded) {
    job.in_phase.stuck_recorded = true;
    RecordEvent(context, job, "stuck", job.last_known ? job.last_known->version : 0,
                absl::StrCat("RECOVERING, waiting for ", WaitingFor(job)));
  }
  CancelLeftovers(context, job);
  if (IsWaitingForBody(job)) AskForBody(context, job, job.pending_fetch.rank + 1);
}

}  // namespace eplb::core
