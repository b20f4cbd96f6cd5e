#include "server/core/ranks/run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"
#include "proto/wire/names.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/recovery.h"
#include "server/core/ranks/answers.h"
#include "server/core/ranks/questions.h"
#include "server/core/ranks/run_registry.h"
#include "server/core/state/ending.h"
#include "server/core/state/memory.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr size_t kMaxEndpoint = 256;  // bytes of what a rank says

// Drops the decision for the current run. Ranks are asked to forget the proposal. Their answers, or
// their next Hello, show its result.
void AbandonWork(DecisionContext& context, Job& job, const std::string& why) {
  StopSolve(context, job);
  job.chunks = {};
  job.pending_fetch = {};
  if (!job.proposal) return;
  const int64_t version = job.proposal->message.version;
  for (const Rank& rank : job.current->ranks) {
    if (rank.answer == Answer::kApplied || rank.answer == Answer::kFailed) continue;
    SendTo(context, rank, wire::Cancel{version, why});
  }
  job.proposal.reset();
  RecordEvent(context, job, "withdrawn", version,
              absl::StrCat("version ", version, " is withdrawn: ", why));
  SettlePlan(context, job, why);
}

absl::Status Replaced(const Run& old, const Run& fresh, bool yields) {
  if (!yields) return FailedPrecondition("run ", old.name, " was replaced by ", fresh.name);
  return Aborted("run ", old.name, " makes way for ", fresh.name, "; retry later");
}

// How long the run may take to tell its first steps. One that goes on is as fast as it was. The
// first steps of a new one are slow, and it may be as slow as the one before.
absl::Duration FirstPatience(const DecisionContext& context, const Job& job, bool goes_on) {
  const absl::Duration as_before =
      PatienceFor(absl::Seconds(job.reports.seconds), absl::Seconds(job.reports.gap_seconds));
  if (goes_on && job.reports.seconds > 0) return as_before;
  return std::max(context.state.config.prepare_deadline, as_before);
}

bool IsAwaySince(const Run& run, absl::Time since) {
  if (run.num_hello - run.num_connected <= run.num_finished) return false;
  return std::ranges::any_of(run.ranks, [since](const Rank& rank) {
    return rank.said_hello && rank.session == 0 && !rank.finished && rank.away_since < since;
  });
}

}  // namespace

absl::StatusOr<RankGrid> GridOf(const wire::Hello& hello) {
  if (!hello.engine.empty()) return RankGrid::Make({});  // its rank speaks for all GPUs
  return RankGrid::Make({.world_size = hello.world_size,
                         .num_gpus = hello.shape.num_gpus,
                         .pipeline_parallel_size = hello.pipeline_parallel_size,
                         .expert_tensor_parallel = hello.expert_tensor_parallel});
}

absl::StatusOr<Run> MakeRun(const wire::Hello& hello) {
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(hello.shape));
  EPLB_ASSIGN_OR_RETURN(const RankGrid grid, GridOf(hello));
  Run run(topology, grid);
  run.name = hello.run_id;
  run.asking.engine = Clipped(hello.engine, wire::kMaxNameLength);
  run.shape = hello.shape;
  run.vote_every = hello.vote_every;
  run.report_every = hello.report_every;
  run.reduce = hello.reduce;
  run.split = hello.split;
  run.migration.weight_bytes = hello.weight_bytes;
  run.migration.state_bytes = hello.state_bytes;
  run.model_layers = hello.model_layers;
  run.ranks.resize(static_cast<size_t>(hello.world_size));
  return run;
}

void StartRun(DecisionContext& context, Job& job, Run run) {
  const std::string reason =
      absl::StrCat("run ", run.name, " of ", run.world_size(), " ranks",
                   job.current ? absl::StrCat(" replaces ", job.current->name) : " starts");
  std::string taken;
  if (HasRanksThatTrain(job) && job.current->num_connected > 0) {
    run.took_over = job.current->name;
    taken = absl::StrCat("run ", run.name, " took over from ", job.current->name, " while ",
                         job.current->num_connected, " of its ", job.current->world_size(),
                         " ranks were still connected: a restart, or two jobs of one name");
  }
  // Numbers of different daemons say little: one that trains and makes way only to a higher one is
  // no older for it, and may come again as a newcomer. So may one that went on with another daemon.
  const bool by_number =
      job.current && OwnedItLater(job, run) && !run.take_over && StepsAdvance(job, context.now);
  const bool yields = by_number || (job.current && !job.current->moved.empty());
  if (job.current) {
    Refuse(context, std::exchange(job.current->asking.ticket, 0),
           Aborted("run ", run.name, " took the job over"));
    AbandonWork(context, job, reason);
    CloseAll(context, *job.current, Replaced(*job.current, run, yields));
    if (!yields) RememberGone(job, job.current->name, job.current->run_number);
  }
  // The run that owned the job before this daemon started did not come back in time.
  if (!yields && !job.owner.run_id.empty() && job.owner.run_id != run.name) {
    RememberGone(job, job.owner.run_id, job.owner.run_number);
  }
  const bool is_first = job.owner.run_number == 0;
  run.run_number = NumberOf(job, run);
  // A rank of a run that goes on may still bring a memory that is newer than the daemon's.
  const bool goes_on = job.owner.run_id == run.name && job.owner.run_number == run.run_number;
  // To a daemon that does not know the job the first to come is a newcomer, whatever its number.
  if (!is_first) run.claimed = run.run_number;
  job.owner.run_number = run.run_number;
  job.current = std::move(run);
  if (!goes_on) Remember(job, Tell::kAll);
  job.windows = {};
  job.reports.not_counting.clear();
  job.reports.covered_step = -1;
  job.reports.pace = {};
  job.decisions.pauses.clear();
  BeginRun(job, job.current->name);
  job.owner.ended_before.reset();
  job.step = 0;
  for (const Rank& rank : job.current->ranks) job.step = std::max(job.step, rank.step);
  const double usual_gap = goes_on ? job.reports.gap_seconds : 0;
  BeginSteps(*job.current, FirstPatience(context, job, goes_on), absl::Seconds(usual_gap),
             context.now);
  if (job.current->num_hello > 0) NoteHelloStep(*job.current, job.step, context.now);
  const int32_t votes = context.state.config.vote_every_steps;
  const bool votes_differ = votes != 0 && votes != job.current->vote_every;
  if (votes_differ && job.current->asking.engine.empty()) {
    RecordEvent(
        context, job, "vote_every_differs", job.last_known ? job.last_known->version : 0,
        absl::StrCat("the job votes every ", job.current->vote_every,
                     " steps, vote.every_steps is ", votes, "; the job keeps its own choice"));
  }
  const int64_t version = job.last_known ? job.last_known->version : 0;
  if (!taken.empty()) RecordEvent(context, job, "taken_over", version, taken);
  RecordEvent(context, job, "run_started", version, reason);
  SetPhase(context, job, job.quarantine.empty() ? Phase::kRecovering : Phase::kQuarantine);
}

void StartCandidate(DecisionContext& context, Job& job) {
  Run candidate = *std::move(job.candidate);
  job.candidate.reset();
  StartRun(context, job, std::move(candidate));
}

void EndRun(DecisionContext& context, Job& job, v1::RunEnding how, const std::string& reason) {
  AbandonWork(context, job, reason);
  Run& run = *job.current;
  run.ending = how == v1::RUN_ENDING_LOST ? Ending::kLost : Ending::kFinal;
  run.end.set_ending(how);
  run.end.set_reason(reason);
  run.end.set_unix_micros(absl::ToUnixMicros(context.now));
  run.end.set_run_id(run.name);
  run.end.set_world_size(static_cast<uint32_t>(run.world_size()));
  run.end.set_step(static_cast<uint64_t>(job.step));
  run.end.set_elsewhere(how == v1::RUN_ENDING_LOST && !run.moved.empty());
  if (how != v1::RUN_ENDING_LOST) {
    RememberGone(job, run.name, run.run_number);
    job.quarantine.clear();  // nothing of that run goes on
    Remember(job);
  }
  // Ranks that are lost may come back, and coming back must not end QUARANTINE.
  const bool stays = how == v1::RUN_ENDING_LOST && !job.quarantine.empty();
  SetPhase(context, job, stays ? Phase::kQuarantine : Phase::kRecovering);
  RecordEvent(context, job, "run_ended", job.last_known ? job.last_known->version : 0,
              absl::StrCat("run ", run.name, " ended: ", reason));
  // The next run already gathers: from here on it is what the job waits for. With all its ranks
  // it is served by the next Tick. A lost run may come back until then.
  const bool gathers = how != v1::RUN_ENDING_LOST && job.candidate &&
                       job.candidate->num_connected > 0 &&
                       job.candidate->num_hello < job.candidate->world_size();
  if (gathers) StartCandidate(context, job);
  if (!BelongsInStore(job)) return;
  StoreLoadHistory(context, job);
  StoreRepeatedPlan(context, job);
  if (how == v1::RUN_ENDING_LOST) {
    job.store.due = true;  // a Tick is about all jobs: it stores last
  } else {
    StoreJobIfChanged(context, job);
  }
}

void DropCandidate(DecisionContext& context, Job& job, const absl::Status& why) {
  CloseAll(context, *job.candidate, why);
  const std::string sentence = absl::StrCat(
      "run ", job.candidate->name, " ended before it was served: ", std::string(why.message()));
  job.candidate.reset();
  RecordEvent(context, job, "run_ended", job.last_known ? job.last_known->version : 0, sentence);
}

void HandleAway(DecisionContext& context, Sender sender, const std::string& reason) {
  context.state.bindings.erase(sender.session);
  sender.rank.session = 0;
  sender.rank.away_since = context.now;
  sender.rank.cut = true;
  --sender.run.num_connected;
  context.decision.reason = absl::StrCat("rank ", sender.index, " of job ", sender.job.name,
                                         " is away without Goodbye: ", reason);
  if (!sender.is_current()) return;
  TryRelease(context, sender.job);  // another rank must send the body
  AmendEnding(context, sender.job);
}

void Handle(DecisionContext& context, Sender sender, const wire::Goodbye& goodbye) {
  Job& job = sender.job;
  CloseRank(context, sender.run, sender.rank, absl::OkStatus());
  if (goodbye.failed) {
    sender.rank.failed = true;
    if (sender.run.ending == Ending::kFinal) return;
    sender.run.failure = FailureOf(sender, goodbye, context.now);
    const std::string reason = FailureReason(sender.run);
    if (!sender.is_current()) {
      RememberGone(job, sender.run.name, 0);
      DropCandidate(context, job, FailedPrecondition(reason));
    } else {
      EndRun(context, job, v1::RUN_ENDING_FAILED, reason);
    }
    return;
  }
  sender.rank.finished = true;
  ++sender.run.num_finished;
  if (sender.run.ending == Ending::kFinal) return;
  const bool all = sender.run.num_finished == sender.run.world_size();
  const std::string finished = absl::StrCat("all ", sender.run.world_size(), " ranks finished");
  if (!sender.is_current()) {
    if (!all) return;
    RememberGone(job, sender.run.name, 0);
    DropCandidate(context, job, FailedPrecondition(finished));
  } else if (all) {
    EndRun(context, job, v1::RUN_ENDING_FINISHED, finished);
  } else if (job.proposal) {
    HandleRankFinished(context, sender);
  }
}

void Handle(DecisionContext& context, Sender sender, const wire::Moved& moved) {
  Job& job = sender.job;
  Run& run = sender.run;
  if (run.moved.empty()) {
    run.moved =
        absl::StrCat("its ranks continue with eplbd at ", Clipped(moved.endpoint, kMaxEndpoint),
                     ", which leads with term ", moved.term, "; this one led with term ", job.term);
    RecordEvent(context, job, "stepped_down", job.last_known ? job.last_known->version : 0,
                absl::StrCat("run ", run.name, ": ", run.moved));
  }
  CloseRank(context, run, sender.rank, absl::OkStatus());
  // Those that are away have gone too, or would have said more.
  if (!sender.is_current() || run.ending != Ending::kLive) return;
  if (run.num_connected > 0) return;
  const std::string reason = run.moved;  // the run may be replaced meanwhile
  EndRun(context, job, v1::RUN_ENDING_LOST, reason);
}

void EndLostRuns(DecisionContext& context, Job& job) {
  const absl::Duration grace = context.state.config.session_grace;
  const absl::Time since = context.now - grace;
  if (job.candidate && IsAwaySince(*job.candidate, since)) {
    // Its other ranks come back and gather again.
    DropCandidate(context, job, Aborted(LossReason(*job.candidate, grace, context.now)));
  }
  // In QUARANTINE nothing is proposed anyway, and coming back must not end it.
  if (job.phase != Phase::kQuarantine && job.current && job.current->ending == Ending::kLive &&
      IsAwaySince(*job.current, since)) {
    EndRun(context, job, v1::RUN_ENDING_LOST, LossReason(*job.current, grace, context.now));
  }
}

}  // namespace eplb::core
