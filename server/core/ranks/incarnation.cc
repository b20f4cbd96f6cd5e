#include "server/core/ranks/incarnation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/clipped.h"
#include "base/status_macros.h"
#include "server/core/decisions/held.h"
#include "server/core/decisions/plans.h"
#include "server/core/ranks/answers.h"
#include "server/core/ranks/launch.h"
#include "server/core/state/ending.h"
#include "server/core/state/memory.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr size_t kMaxEndpoint = 256;  // bytes of what a rank says

// What was decided for the current incarnation no longer counts. Ranks are asked to forget the
// proposal; their answers, or their next Hello, say what became of it.
void AbandonWork(Turn& turn, Job& job, const std::string& why) {
  StopSolve(turn, job);
  job.chunks = {};
  job.asked = {};
  if (!job.proposal) return;
  const int64_t version = job.proposal->message.version;
  for (const Rank& rank : job.current->ranks) {
    if (rank.answer == Answer::kApplied || rank.answer == Answer::kFailed) continue;
    SendTo(turn, rank, wire::Retract{version, why});
  }
  job.proposal.reset();
  RecordEvent(turn, job, "withdrawn", version,
              absl::StrCat("version ", version, " is withdrawn: ", why));
  SettlePlan(turn, job, why);
}

absl::Status Replaced(const Incarnation& old, const Incarnation& fresh, bool yields) {
  if (!yields) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", old.name, " was replaced by ", fresh.name));
  }
  return absl::AbortedError(
      absl::StrCat("incarnation ", old.name, " makes way for ", fresh.name, "; come back later"));
}

// How long the launch may take to tell its first steps. One that goes on is as fast as it was. The
// first steps of a new one are slow, and it may be as slow as the one before.
absl::Duration FirstPatience(const Turn& turn, const Job& job, bool goes_on) {
  const absl::Duration as_before =
      PatienceFor(absl::Seconds(job.report_seconds), absl::Seconds(job.gap_seconds));
  if (goes_on && job.report_seconds > 0) return as_before;
  return std::max(turn.state.config.prepare_deadline, as_before);
}

bool IsAwaySince(const Incarnation& incarnation, absl::Time since) {
  if (incarnation.num_hello - incarnation.num_connected <= incarnation.num_finished) return false;
  return std::any_of(incarnation.ranks.begin(), incarnation.ranks.end(), [since](const Rank& rank) {
    return rank.said_hello && rank.session == 0 && !rank.finished && rank.away_since < since;
  });
}

}  // namespace

absl::StatusOr<RankGrid> GridOf(const wire::Hello& hello) {
  return RankGrid::Make({.world_size = hello.world_size,
                         .num_gpus = hello.shape.num_gpus,
                         .num_pipeline_ranks = hello.num_pipeline_ranks,
                         .expert_tensor_parallel = hello.expert_tensor_parallel});
}

absl::StatusOr<Incarnation> MakeIncarnation(const wire::Hello& hello) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(hello.shape));
  EPLB_ASSIGN_OR_RETURN(const RankGrid grid, GridOf(hello));
  Incarnation incarnation(topology, grid);
  incarnation.name = hello.incarnation;
  incarnation.shape = hello.shape;
  incarnation.vote_every = hello.vote_every;
  incarnation.report_every = hello.report_every;
  incarnation.reduce = hello.reduce;
  incarnation.migration.weight_bytes = hello.weight_bytes;
  incarnation.migration.state_bytes = hello.state_bytes;
  incarnation.model_layers = hello.model_layers;
  incarnation.ranks.resize(static_cast<size_t>(hello.world_size));
  return incarnation;
}

void StartIncarnation(Turn& turn, Job& job, Incarnation incarnation) {
  const std::string reason =
      absl::StrCat("incarnation ", incarnation.name, " of ", incarnation.world_size(), " ranks",
                   job.current ? absl::StrCat(" replaces ", job.current->name) : " starts");
  std::string taken;
  if (HasRanksThatTrain(job) && job.current->num_connected > 0) {
    incarnation.took_over = job.current->name;
    taken =
        absl::StrCat("incarnation ", incarnation.name, " took over from ", job.current->name,
                     " while ", job.current->num_connected, " of its ", job.current->world_size(),
                     " ranks were still connected: a restart, or two jobs of one name");
  }
  // Numbers of different daemons say little: one that trains and makes way only to a higher one is
  // no older for it, and may come again as a newcomer. So may one that went on with another daemon.
  const bool by_number = job.current && OwnedItLater(job, incarnation) && !incarnation.take_over &&
                         StepsAdvance(job, turn.now);
  const bool yields = by_number || (job.current && !job.current->moved.empty());
  if (job.current) {
    AbandonWork(turn, job, reason);
    CloseAll(turn, *job.current, Replaced(*job.current, incarnation, yields));
    if (!yields) RememberGone(job, job.current->name, job.current->launch);
  }
  // The launch that owned the job before this daemon started did not come back in time.
  if (!yields && !job.remembered.empty() && job.remembered != incarnation.name) {
    RememberGone(job, job.remembered, job.launch);
  }
  const bool is_first = job.launch == 0;
  incarnation.launch = NumberOf(job, incarnation);
  // Of a launch that goes on a rank may still bring what is newer than all that is known here.
  const bool goes_on = job.remembered == incarnation.name && job.launch == incarnation.launch;
  // To a daemon that does not know the job the first to come is a newcomer, whatever its number.
  if (!is_first) incarnation.claimed = incarnation.launch;
  job.launch = incarnation.launch;
  job.current = std::move(incarnation);
  if (!goes_on) Remember(job, Tell::kAll);
  job.windows = {};
  job.covered_step = -1;
  job.pauses.clear();
  BeginLaunch(job, job.current->name);
  job.ended_before.reset();
  job.step = 0;
  for (const Rank& rank : job.current->ranks) job.step = std::max(job.step, rank.step);
  const double usual_gap = goes_on ? job.gap_seconds : 0;
  BeginSteps(*job.current, FirstPatience(turn, job, goes_on), absl::Seconds(usual_gap), turn.now);
  if (job.current->num_hello > 0) NoteHelloStep(*job.current, job.step, turn.now);
  const int32_t votes = turn.state.config.vote_every_steps;
  if (votes != 0 && votes != job.current->vote_every) {
    RecordEvent(
        turn, job, "vote_every_differs", job.known ? job.known->version : 0,
        absl::StrCat("the job votes every ", job.current->vote_every,
                     " steps, vote.every_steps is ", votes, "; the job's own choice is in force"));
  }
  const int64_t version = job.known ? job.known->version : 0;
  if (!taken.empty()) RecordEvent(turn, job, "taken_over", version, taken);
  RecordEvent(turn, job, "incarnation_started", version, reason);
  SetPhase(turn, job, job.quarantine.empty() ? Phase::kHeld : Phase::kQuarantine);
}

void StartCandidate(Turn& turn, Job& job) {
  Incarnation candidate = *std::move(job.candidate);
  job.candidate.reset();
  StartIncarnation(turn, job, std::move(candidate));
}

void EndIncarnation(Turn& turn, Job& job, RunEnding how, const std::string& reason) {
  AbandonWork(turn, job, reason);
  Incarnation& incarnation = *job.current;
  incarnation.ending = how == RunEnding::kLost ? Ending::kLost : Ending::kFinal;
  incarnation.end = {.how = how,
                     .reason = reason,
                     .at = turn.now,
                     .incarnation = incarnation.name,
                     .world_size = incarnation.world_size(),
                     .step = job.step};
  if (how != RunEnding::kLost) {
    RememberGone(job, incarnation.name, incarnation.launch);
    job.quarantine.clear();  // nothing of that launch goes on
    Remember(job);
  }
  // Ranks that are lost may come back, and coming back must not end QUARANTINE.
  const bool stays = how == RunEnding::kLost && !job.quarantine.empty();
  SetPhase(turn, job, stays ? Phase::kQuarantine : Phase::kHeld);
  RecordEvent(turn, job, "incarnation_ended", job.known ? job.known->version : 0,
              absl::StrCat("incarnation ", incarnation.name, " ended: ", reason));
  // The next launch already gathers: from here on it is what the job waits for. With all its ranks
  // it is served by the next Tick. A lost launch may come back until then.
  const bool gathers = how != RunEnding::kLost && job.candidate &&
                       job.candidate->num_connected > 0 &&
                       job.candidate->num_hello < job.candidate->world_size();
  if (gathers) StartCandidate(turn, job);
  if (!BelongsInStore(job)) return;
  if (how == RunEnding::kLost) {
    job.write_due = true;  // a Tick is about all jobs: it stores last
  } else {
    StoreJobIfChanged(turn, job);
  }
}

void DropCandidate(Turn& turn, Job& job, const absl::Status& why) {
  CloseAll(turn, *job.candidate, why);
  const std::string sentence =
      absl::StrCat("incarnation ", job.candidate->name,
                   " ended before it was served: ", std::string(why.message()));
  job.candidate.reset();
  RecordEvent(turn, job, "incarnation_ended", job.known ? job.known->version : 0, sentence);
}

void HandleAway(Turn& turn, Speaker speaker, const std::string& reason) {
  turn.state.seats.erase(speaker.session);
  speaker.rank.session = 0;
  speaker.rank.away_since = turn.now;
  speaker.rank.cut = true;
  --speaker.incarnation.num_connected;
  turn.decision.reason = absl::StrCat("rank ", speaker.index, " of job ", speaker.job.name,
                                      " is away without Goodbye: ", reason);
  if (!speaker.is_current()) return;
  TryRelease(turn, speaker.job);  // another rank must send the body
  AmendEnding(turn, speaker.job);
}

void HandleGoodbye(Turn& turn, Speaker speaker, const wire::Goodbye& goodbye) {
  Job& job = speaker.job;
  CloseRank(turn, speaker.incarnation, speaker.rank, absl::OkStatus());
  if (goodbye.failed) {
    speaker.rank.failed = true;
    if (speaker.incarnation.ending == Ending::kFinal) return;
    speaker.incarnation.failure = FailureOf(speaker, goodbye, turn.now);
    const std::string reason = FailureReason(speaker.incarnation);
    if (!speaker.is_current()) {
      RememberGone(job, speaker.incarnation.name, 0);
      DropCandidate(turn, job, absl::FailedPreconditionError(reason));
    } else {
      EndIncarnation(turn, job, RunEnding::kFailed, reason);
    }
    return;
  }
  speaker.rank.finished = true;
  ++speaker.incarnation.num_finished;
  if (speaker.incarnation.ending == Ending::kFinal) return;
  const bool all = speaker.incarnation.num_finished == speaker.incarnation.world_size();
  const std::string finished =
      absl::StrCat("all ", speaker.incarnation.world_size(), " ranks finished");
  if (!speaker.is_current()) {
    if (!all) return;
    RememberGone(job, speaker.incarnation.name, 0);
    DropCandidate(turn, job, absl::FailedPreconditionError(finished));
  } else if (all) {
    EndIncarnation(turn, job, RunEnding::kFinished, finished);
  } else if (job.proposal) {
    HandleRankFinished(turn, speaker);
  }
}

void HandleMoved(Turn& turn, Speaker speaker, const wire::Moved& moved) {
  Job& job = speaker.job;
  Incarnation& incarnation = speaker.incarnation;
  if (incarnation.moved.empty()) {
    incarnation.moved = absl::StrCat(
        "its ranks went on with eplbd at ", wire::Clipped(moved.endpoint, kMaxEndpoint),
        ", which leads with term ", moved.term, "; this one led with term ", job.term);
    RecordEvent(turn, job, "stepped_down", job.known ? job.known->version : 0,
                absl::StrCat("incarnation ", incarnation.name, ": ", incarnation.moved));
  }
  CloseRank(turn, incarnation, speaker.rank, absl::OkStatus());
  // Those that are away have gone too, or would have said more.
  if (!speaker.is_current() || incarnation.ending != Ending::kLive) return;
  if (incarnation.num_connected > 0) return;
  const std::string reason = incarnation.moved;  // the incarnation may be replaced meanwhile
  EndIncarnation(turn, job, RunEnding::kLost, reason);
}

void EndLostIncarnations(Turn& turn, Job& job) {
  const absl::Duration grace = turn.state.config.session_grace;
  const absl::Time since = turn.now - grace;
  if (job.candidate && IsAwaySince(*job.candidate, since)) {
    // Its other ranks come back and gather again.
    DropCandidate(turn, job, absl::AbortedError(LossReason(*job.candidate, grace, turn.now)));
  }
  // In QUARANTINE nothing is proposed anyway, and coming back must not end it.
  if (job.phase != Phase::kQuarantine && job.current && job.current->ending == Ending::kLive &&
      IsAwaySince(*job.current, since)) {
    EndIncarnation(turn, job, RunEnding::kLost, LossReason(*job.current, grace, turn.now));
  }
}

}  // namespace eplb::core
