#include "server/core/ranks/questions.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "server/core/decisions/decide.h"
#include "server/core/decisions/proposal.h"
#include "server/core/decisions/recovery.h"
#include "server/core/ranks/answers.h"
#include "server/core/ranks/hello.h"
#include "server/core/ranks/run.h"
#include "server/core/ranks/run_registry.h"
#include "server/core/state/memory.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

// A question whose number leaps by more than this is refused, as a leap of versions is.
constexpr int64_t kMaxQuestion = int64_t{1} << 40;

bool HoldsTheSame(const Placement& a, const Placement& b) {
  return a.topology() == b.topology() &&
         (a.physical_to_logical_map() == b.physical_to_logical_map()).all();
}

// The version that the engine runs, as far as the daemon knows the placement.
bool Runs(const Job& job, const Placement& current) {
  return job.last_known && job.last_known->placement &&
         HoldsTheSame(*job.last_known->placement, current);
}

// The rank of the job's current run, if that is the question's; null: it must register.
Rank* FindRank(Job& job, const std::string& run_id) {
  if (!job.current || job.current->name != run_id || job.current->asking.engine.empty()) {
    return nullptr;
  }
  Rank& rank = job.current->ranks.front();
  return rank.session != 0 && job.current->ending == Ending::kLive ? &rank : nullptr;
}

Sender SenderOf(Job& job, Run& run) {
  return {job, run, run.ranks.front(), 0, run.ranks.front().session};
}

wire::Hello HelloOf(const DecisionContext& context, const PlanQuestion& question) {
  wire::Hello hello;
  hello.job = question.job;
  hello.run_id = question.run_id;
  hello.nonce = 1;  // one process asks all questions of a run
  hello.world_size = 1;
  hello.shape = question.shape;
  hello.step = question.number - 1;
  hello.vote_every = 1;
  hello.report_every = 1;
  hello.weight_bytes = question.expert_bytes;
  hello.staging_rows = kMaxNumber;
  hello.session_number = question.ticket;
  hello.library_version = question.engine;
  hello.reduce = wire::Reduce::kRoot;
  hello.engine = question.engine;
  hello.take_over = true;  // a restarted engine is another run, and the one before says nothing
  hello.running_digest = DigestOf(question.current);
  const auto found = context.state.jobs.find(question.job);
  if (found == context.state.jobs.end()) {
    const bool first =
        HoldsTheSame(Placement::Static(question.current.topology()), question.current);
    hello.running_version = first ? 0 : 1;
  } else if (const Job& job = found->second; Runs(job, question.current)) {
    hello.running_version = job.last_known->version;
    hello.running_digest = job.last_known->digest;
  } else {
    hello.running_version = job.versions.next;
  }
  return hello;
}

void DropProposal(DecisionContext& context, Sender sender, const std::string& why,
                  wire::FailedCode code = wire::FailedCode::kTransfer) {
  Handle(context, sender,
         wire::Failed{.version = sender.job.proposal->message.version,
                      .code = code,
                      .detail = why,
                      .step = sender.job.step});
}

// Settles the proposal in flight if the engine's current placement shows what became of it.
void LearnOutcome(DecisionContext& context, Sender sender, const PlanQuestion& question) {
  Job& job = sender.job;
  if (!job.proposal) return;
  const wire::Propose& message = job.proposal->message;
  if (HoldsTheSame(*job.proposal->after, question.current)) {
    HandleSwitched(context, sender, {.version = message.version, .digest = message.digest});
  } else if (!Runs(job, question.current)) {
    DropProposal(context, sender, "the engine runs a placement from elsewhere");
  } else if (sender.run.asking.given_version == message.version) {
    DropProposal(context, sender,
                 absl::StrCat("the engine still runs version ", job.last_known->version));
  }
}

// The run that the engine ended when it changed its shape.
void EndReplaced(DecisionContext& context, const PlanQuestion& question) {
  const auto found = context.state.jobs.find(question.job);
  if (found == context.state.jobs.end()) return;
  Job& job = found->second;
  Rank* const rank = FindRank(job, question.replaces_run_id);
  if (rank == nullptr) return;
  Refuse(context, std::exchange(job.current->asking.ticket, 0),
         Aborted("the engine asks as run ", question.run_id, " now"));
  Handle(context, SenderOf(job, *job.current),
         wire::Goodbye{.reason = absl::StrCat("the engine continues as run ", question.run_id)});
}

absl::Status CheckFields(const PlanQuestion& question) {
  if (question.engine.empty()) return InvalidInput("question: engine is empty");
  if (question.number >= 1 && question.number <= kMaxQuestion) return absl::OkStatus();
  return InvalidInput("question: number is ", question.number, ", it must be in 1..", kMaxQuestion);
}

// Says Hello for the engine, and sends the placement if the daemon does not know it.
absl::Status Register(DecisionContext& context, const PlanQuestion& question) {
  const SessionId session = -question.ticket;
  const wire::Hello hello = HelloOf(context, question);
  EPLB_RETURN_IF_ERROR(AdmitHello(context, session, hello));
  context.state.asking.insert(question.job);
  Job& job = context.state.jobs.at(question.job);
  if (!job.current || job.current->name != question.run_id) {
    return Unavailable("the run waits for ", CandidateWaitsFor(job, context.now));
  }
  LearnOutcome(context, SenderOf(job, *job.current), question);
  if (job.pending_fetch.session != session) return absl::OkStatus();
  Handle(context, SenderOf(job, *job.current),
         wire::PlacementBody{hello.running_version, hello.running_digest, question.current});
  return absl::OkStatus();
}

void EndQuestion(DecisionContext& context, Run& run, ChangeOutcome outcome) {
  context.decision.effects.emplace_back(Reply{run.asking.ticket, std::move(outcome)});
  run.asking.answered = std::exchange(run.asking.ticket, 0);
  run.asking.answered_by = context.state.decision_count;
}

// Why nothing is proposed now, one sentence.
std::string WhyKept(const DecisionContext& context, const Job& job) {
  const absl::Status may = MayDecide(context.state, job, /*behind_chunk=*/true);
  if (!may.ok()) return std::string(may.message());
  const std::string& reason = context.decision.reason;
  return reason.empty() ? job.decisions.last_reason : reason;
}

// The daemon holds the proposal for the engine until the next answer carries it.
void HoldProposal(DecisionContext& context, Job& job) {
  Run& run = *job.current;
  if (job.proposal && job.phase == Phase::kPreparing) {
    const wire::Propose& message = job.proposal->message;
    Handle(context, SenderOf(job, run),
           wire::Prepared{message.version, message.digest, message.digest});
  }
  if (!job.proposal || run.asking.given_version == job.proposal->message.version) return;
  const bool paused = (job.orders.paused || job.settings.observe) && !job.chunks.despite_pause;
  if (job.phase == Phase::kVoting && paused) {
    StartCancel(context, job, "the job was paused, or is only observed from now on", false);
  }
  if (job.phase == Phase::kCancelling) {
    DropProposal(context, SenderOf(job, run), "no answer carried it", wire::FailedCode::kCancelled);
  }
}

void AnswerQuestion(DecisionContext& context, Job& job) {
  Run& run = *job.current;
  if (run.asking.ticket == 0) return;
  if (job.proposal && job.phase == Phase::kVoting) {
    const wire::Propose& message = job.proposal->message;
    run.asking.given_version = message.version;
    return EndQuestion(
        context, run,
        {.version = message.version, .outcome = message.reason, .placement = job.proposal->after});
  }
  if (job.solving.id != 0) return;
  EndQuestion(
      context, run,
      {.version = job.last_known ? job.last_known->version : 0, .outcome = WhyKept(context, job)});
}

}  // namespace

absl::StatusOr<Sender> BeginQuestion(DecisionContext& context, const PlanQuestion& question) {
  EPLB_RETURN_IF_ERROR(CheckFields(question));
  if (!question.replaces_run_id.empty() && question.replaces_run_id != question.run_id) {
    EndReplaced(context, question);
  }
  auto found = context.state.jobs.find(question.job);
  Rank* rank =
      found == context.state.jobs.end() ? nullptr : FindRank(found->second, question.run_id);
  if (rank != nullptr) {
    Job& job = found->second;
    if (job.current->asking.ticket != 0) {
      return Aborted("another question of job ", question.job, " is being answered");
    }
    if (job.current->topology == question.current.topology()) {
      LearnOutcome(context, SenderOf(job, *job.current), question);
    }
    if (!Runs(job, question.current)) rank = nullptr;
  }
  if (rank == nullptr) {
    EPLB_RETURN_IF_ERROR(Register(context, question));
    found = context.state.jobs.find(question.job);
  }
  return SenderOf(found->second, *found->second.current);
}

wire::LoadReport ReportOf(const PlanQuestion& question, const Rank& rank) {
  wire::LoadReport report;
  report.first_step = question.number;
  report.last_step = question.number;
  report.counts = question.load;
  report.version = rank.running_version;
  return report;
}

void AwaitAnswer(DecisionContext& context, Sender sender, const PlanQuestion& question) {
  sender.run.asking.ticket = question.ticket;
  sender.run.asking.begun_by = context.state.decision_count;
  context.state.asking.insert(sender.job.name);
}

void Refuse(DecisionContext& context, int64_t ticket, const absl::Status& status) {
  if (ticket != 0) context.decision.effects.emplace_back(Reply{ticket, status});
}

void HandleSettled(DecisionContext& context, const PlanSettled& settled) {
  const auto found = context.state.jobs.find(settled.job);
  Rank* const rank =
      found == context.state.jobs.end() ? nullptr : FindRank(found->second, settled.run_id);
  const bool in_flight = rank != nullptr && found->second.proposal &&
                         found->second.proposal->message.version == settled.version &&
                         found->second.current->asking.given_version == settled.version;
  if (!in_flight) {
    return Refuse(context, settled.ticket,
                  NotFound("version ", settled.version, " is in no answer to run ", settled.run_id,
                           " of job ", settled.job));
  }
  Job& job = found->second;
  const Sender sender = SenderOf(job, *job.current);
  if (settled.taken) {
    HandleSwitched(context, sender,
                   {.version = settled.version, .digest = job.proposal->message.digest});
  } else {
    DropProposal(context, sender, settled.reason);
  }
  context.decision.effects.emplace_back(
      Reply{settled.ticket, ChangeOutcome{.version = settled.version}});
}

void ServeEngines(DecisionContext& context) {
  for (auto name = context.state.asking.begin(); name != context.state.asking.end();) {
    const auto found = context.state.jobs.find(*name);
    const bool asks = found != context.state.jobs.end() && found->second.current &&
                      !found->second.current->asking.engine.empty();
    if (!asks) {
      name = context.state.asking.erase(name);
      continue;
    }
    HoldProposal(context, found->second);
    AnswerQuestion(context, found->second);
    ++name;
  }
}

void FailQuestions(DecisionContext& context, const absl::Status& why) {
  const absl::Status status = Unavailable("the job cannot be stored: ", why.ToString());
  const int64_t dropped = context.state.decision_count - 1;
  for (const std::string& name : context.state.asking) {
    const auto found = context.state.jobs.find(name);
    if (found == context.state.jobs.end() || !found->second.current) continue;
    Job& job = found->second;
    Asking& asking = job.current->asking;
    if (asking.answered_by == dropped) Refuse(context, std::exchange(asking.answered, 0), status);
    if (asking.begun_by != dropped || asking.ticket == 0) continue;
    // The solver may never have heard of it.
    StopSolve(context, job);
    if (job.phase == Phase::kSolving) SetPhase(context, job, Phase::kIdle);
    Refuse(context, std::exchange(asking.ticket, 0), status);
  }
}

void EndIdleEngine(DecisionContext& context, Job& job) {
  if (!job.current || FindRank(job, job.current->name) == nullptr) return;
  Run& run = *job.current;
  const absl::Duration patience =
      std::max(kLeastIdle, kIdleIntervals * std::max(ReportInterval(run), UsualGap(run.rate)));
  const absl::Duration idle = context.now - std::max(run.rate.began, LastRise(run.rate));
  if (idle <= patience) return;
  const std::string why = absl::StrCat("no question came for ",
                                       absl::FormatDuration(absl::Trunc(idle, absl::Seconds(1))));
  Refuse(context, std::exchange(run.asking.ticket, 0), Unavailable(why));
  HandleAway(context, SenderOf(job, run), why);
  EndRun(context, job, v1::RUN_ENDING_LOST, why);
}

}  // namespace eplb::core
