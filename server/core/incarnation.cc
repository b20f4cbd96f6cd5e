#include "server/core/incarnation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"
#include "server/core/answers.h"
#include "server/core/held.h"
#include "server/core/plans.h"
#include "server/core/sentences.h"

namespace eplb::core {
namespace {

void RememberGone(Job& job, const std::string& name, bool replaced) {
  job.gone.push_back({name, replaced});
  if (static_cast<int>(job.gone.size()) > kMaxGone) job.gone.pop_front();
}

// What was decided for the current incarnation no longer counts. Ranks are asked to forget the
// proposal; their answers, or their next Hello, say what became of it.
void AbandonWork(Turn& turn, Job& job, const std::string& why) {
  job.solving = {};
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

std::vector<int32_t> RanksAway(const Incarnation& incarnation, absl::Time since) {
  std::vector<int32_t> away;
  for (int32_t index = 0; index < incarnation.world_size(); ++index) {
    const Rank& rank = incarnation.ranks[index];
    if (rank.said_hello && rank.session == 0 && !rank.finished && rank.away_since < since) {
      away.push_back(index);
    }
  }
  return away;
}

bool MayBeAway(const Incarnation& incarnation) {
  return incarnation.num_hello - incarnation.num_connected > incarnation.num_finished;
}

std::string FailureReason(const Speaker& speaker, const wire::Goodbye& goodbye) {
  const std::string why = goodbye.reason.empty() ? "" : absl::StrCat(": ", goodbye.reason);
  if (goodbye.missing_ranks.empty()) {
    return absl::StrCat("rank ", speaker.index, " failed after step ", speaker.rank.step, why);
  }
  return absl::StrCat(RankList(goodbye.missing_ranks), " did not answer the vote after step ",
                      speaker.rank.step, ", reported by rank ", speaker.index, why);
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
  if (job.current && job.current->ending == Ending::kLive && job.current->num_connected > 0) {
    incarnation.took_over = job.current->name;
    taken =
        absl::StrCat("incarnation ", incarnation.name, " took over from ", job.current->name,
                     " while ", job.current->num_connected, " of its ", job.current->world_size(),
                     " ranks were still connected: a restart, or two jobs of one name");
  }
  if (job.current) {
    AbandonWork(turn, job, reason);
    if (job.current->ending != Ending::kFinal) RememberGone(job, job.current->name, true);
    CloseAll(turn, *job.current,
             absl::FailedPreconditionError(absl::StrCat("incarnation ", job.current->name,
                                                        " was replaced by ", incarnation.name)));
  }
  std::erase_if(job.gone, [&](const Gone& gone) { return gone.name == incarnation.name; });
  job.current = std::move(incarnation);
  job.windows = {};
  job.account = {};
  job.record = {};
  job.seconds_per_byte.clear();
  job.last_decision_step.reset();
  job.back_off = {};
  job.ended_before = false;
  job.refusal.clear();
  job.step = 0;
  for (const Rank& rank : job.current->ranks) job.step = std::max(job.step, rank.step);
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
  SetPhase(turn, job, Phase::kHeld);
}

void StartCandidate(Turn& turn, Job& job) {
  Incarnation candidate = *std::move(job.candidate);
  job.candidate.reset();
  StartIncarnation(turn, job, std::move(candidate));
}

void EndIncarnation(Turn& turn, Job& job, Ending ending, const std::string& reason) {
  AbandonWork(turn, job, reason);
  Incarnation& incarnation = *job.current;
  incarnation.ending = ending;
  incarnation.end_reason = reason;
  if (ending == Ending::kFinal) RememberGone(job, incarnation.name, false);
  SetPhase(turn, job, Phase::kHeld);
  RecordEvent(turn, job, "incarnation_ended", job.known ? job.known->version : 0,
              absl::StrCat("incarnation ", incarnation.name, " ended: ", reason));
  // The next launch already gathers: from here on it is what the job waits for.
  if (job.candidate && job.candidate->num_connected > 0) StartCandidate(turn, job);
  if (ending == Ending::kFinal && job.known) StoreJobIfChanged(turn, job);
}

void DropCandidate(Turn& turn, Job& job, const std::string& reason) {
  const std::string sentence = absl::StrCat("incarnation ", job.candidate->name,
                                            " ended while its ranks gathered: ", reason);
  CloseAll(turn, *job.candidate, absl::FailedPreconditionError(sentence));
  job.candidate.reset();
  RecordEvent(turn, job, "incarnation_ended", job.known ? job.known->version : 0, sentence);
}

void HandleAway(Turn& turn, Speaker speaker, const std::string& reason) {
  turn.state.seats.erase(speaker.session);
  speaker.rank.session = 0;
  speaker.rank.away_since = turn.now;
  --speaker.incarnation.num_connected;
  turn.decision.reason = absl::StrCat("rank ", speaker.index, " of job ", speaker.job.name,
                                      " is away without Goodbye: ", reason);
  if (speaker.is_current()) TryRelease(turn, speaker.job);  // somebody else must send the body
}

void HandleGoodbye(Turn& turn, Speaker speaker, const wire::Goodbye& goodbye) {
  Job& job = speaker.job;
  CloseRank(turn, speaker.incarnation, speaker.rank, absl::OkStatus());
  if (goodbye.failed) {
    const std::string reason = FailureReason(speaker, goodbye);
    if (!speaker.is_current()) {
      RememberGone(job, speaker.incarnation.name, false);
      DropCandidate(turn, job, reason);
    } else if (speaker.incarnation.ending != Ending::kFinal) {
      EndIncarnation(turn, job, Ending::kFinal, reason);
    }
    return;
  }
  speaker.rank.finished = true;
  ++speaker.incarnation.num_finished;
  if (!speaker.is_current() || speaker.incarnation.ending == Ending::kFinal) return;
  if (speaker.incarnation.num_finished == speaker.incarnation.world_size()) {
    EndIncarnation(turn, job, Ending::kFinal,
                   absl::StrCat("all ", speaker.incarnation.world_size(), " ranks finished"));
  } else if (job.proposal) {
    HandleRankFinished(turn, speaker);
  }
}

void EndLostIncarnations(Turn& turn, Job& job) {
  const absl::Duration grace = turn.state.config.session_grace;
  const auto sentence = [grace](const std::vector<int32_t>& away) {
    return absl::StrCat(RankList(away), away.size() == 1 ? " was" : " were", " away for more than ",
                        absl::FormatDuration(grace), " without Goodbye");
  };
  if (job.candidate && MayBeAway(*job.candidate)) {
    const auto away = RanksAway(*job.candidate, turn.now - grace);
    if (!away.empty()) DropCandidate(turn, job, sentence(away));
  }
  // In QUARANTINE nothing is proposed anyway, and coming back must not end it.
  if (job.phase != Phase::kQuarantine && job.current && job.current->ending == Ending::kLive &&
      MayBeAway(*job.current)) {
    const auto away = RanksAway(*job.current, turn.now - grace);
    if (!away.empty()) EndIncarnation(turn, job, Ending::kLost, sentence(away));
  }
}

}  // namespace eplb::core
