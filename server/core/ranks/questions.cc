#include "server/core/ranks/questions.h"

#include <algorithm>
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

constexpr int64_t kMaxQuestion = int64_t{1} << 40;
constexpr int64_t kMaxTokens = int64_t{1} << 40;        // an expert's in a window
constexpr int64_t kMostExpertBytes = int64_t{1} << 40;  // one expert of one layer
constexpr int32_t kMostGiven = 3;                       // answers that carry a proposal in vain

bool HoldsTheSame(const Placement& a, const Placement& b) {
  return a.topology() == b.topology() &&
         (a.physical_to_logical_map() == b.physical_to_logical_map()).all();
}

// True if the engine runs the newest placement that the daemon knows.
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

bool IsEngines(const Job& job) { return job.current && !job.current->asking.engine.empty(); }

wire::Hello HelloOf(const DecisionContext& context, const PlanQuestion& question) {
  const ReadersIn readers(context.lock);
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
  hello.running_digest = DigestOf(question.current);
  const auto found = context.state.jobs.find(question.job);
  if (found == context.state.jobs.end()) {
    const bool first =
        HoldsTheSame(Placement::Static(question.current.topology()), question.current);
    hello.running_version = first ? 0 : 1;
    return hello;
  }
  const Job& job = found->second;
  hello.take_over =
      IsEngines(job);  // a restarted engine is another run; nobody ends the one before
  if (Runs(job, question.current)) {
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
  } else if (sender.run.asking.given_version == message.version &&
             sender.run.asking.times_given >= kMostGiven) {
    DropProposal(context, sender,
                 absl::StrCat("the engine still runs version ", job.last_known->version, " after ",
                              kMostGiven, " answers"));
  }
}

// Ends the run that the engine left when it changed its shape.
void EndReplaced(DecisionContext& context, const PlanQuestion& question) {
  const auto found = context.state.jobs.find(question.job);
  if (found == context.state.jobs.end() || question.replaces_run_id == question.run_id) return;
  Job& job = found->second;
  Rank* const rank = FindRank(job, question.replaces_run_id);
  if (rank == nullptr) return;
  Handle(context, SenderOf(job, *job.current),
         wire::Goodbye{.reason = absl::StrCat("the engine continues as run ", question.run_id)});
}

absl::Status CheckRange(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidInput("question: ", field, " is ", value, ", it must be in ", least, "..", most);
}

absl::Status CheckFields(const DecisionContext& context, const PlanQuestion& question) {
  if (question.engine.empty()) return InvalidInput("question: engine is empty");
  EPLB_RETURN_IF_ERROR(CheckRange("number", question.number, 1, kMaxQuestion));
  EPLB_RETURN_IF_ERROR(CheckRange("expert_bytes", question.expert_bytes, 0, kMostExpertBytes));
  EPLB_RETURN_IF_ERROR(CheckRange("load", question.load.minCoeff(), 0, kMaxTokens));
  EPLB_RETURN_IF_ERROR(CheckRange("load", question.load.maxCoeff(), 0, kMaxTokens));
  return CheckRange("shape: num_gpus", question.shape.num_gpus, 1,
                    context.state.config.max_ranks_per_job);
}

// Checks what the question says of the job and of the run that it is part of.
absl::Status CheckJob(const DecisionContext& context, const PlanQuestion& question) {
  const auto found = context.state.jobs.find(question.job);
  if (found == context.state.jobs.end() || !found->second.current) return absl::OkStatus();
  const Run& run = *found->second.current;
  if (run.asking.engine.empty() && run.ending == Ending::kLive) {
    return FailedPrecondition("job ", question.job, " trains, in run ", run.name,
                              ": give the engine's job another name");
  }
  if (run.name != question.run_id || question.number > run.asking.number) return absl::OkStatus();
  return InvalidInput("question: number is ", question.number, ", it follows question ",
                      run.asking.number);
}

// Registers the engine's rank, and sends the placement if the daemon does not know it.
absl::Status Register(DecisionContext& context, const PlanQuestion& question,
                      const wire::Hello& hello) {
  const SessionId session = -question.ticket;
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

void Respond(DecisionContext& context, int64_t ticket, absl::StatusOr<ChangeOutcome> outcome) {
  if (ticket != 0) context.state.engine_replies.waiting.push_back({ticket, std::move(outcome)});
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
  Asking& asking = job.current->asking;
  if (asking.ticket == 0) return;
  if (job.proposal && job.phase == Phase::kVoting) {
    const wire::Propose& message = job.proposal->message;
    asking.times_given = asking.given_version == message.version ? asking.times_given + 1 : 1;
    asking.given_version = message.version;
    Respond(context, std::exchange(asking.ticket, 0),
            ChangeOutcome{.version = message.version,
                          .outcome = message.reason,
                          .placement = job.proposal->after});
  } else if (job.solving.id == 0) {
    Respond(context, std::exchange(asking.ticket, 0),
            ChangeOutcome{.version = job.last_known ? job.last_known->version : 0,
                          .outcome = WhyKept(context, job)});
  }
}

// Puts the answers at the end of the decision.
void SendReplies(DecisionContext& context) {
  EngineReplies& replies = context.state.engine_replies;
  if (replies.waiting.empty()) return;
  replies.answered.clear();
  replies.decision = context.state.decision_count;
  for (Reply& reply : replies.waiting) {
    replies.answered.push_back(reply.ticket);
    context.decision.effects.emplace_back(std::move(reply));
  }
  replies.waiting.clear();
}

}  // namespace

absl::StatusOr<Sender> BeginQuestion(DecisionContext& context, const PlanQuestion& question) {
  EPLB_RETURN_IF_ERROR(CheckFields(context, question));
  EPLB_RETURN_IF_ERROR(CheckHello(HelloOf(context, question), context.state.config));
  EPLB_RETURN_IF_ERROR(CheckJob(context, question));
  EndReplaced(context, question);
  auto found = context.state.jobs.find(question.job);
  Rank* const rank =
      found == context.state.jobs.end() ? nullptr : FindRank(found->second, question.run_id);
  if (rank != nullptr) {
    Run& run = *found->second.current;
    Refuse(context, std::exchange(run.asking.ticket, 0),
           Aborted("question ", question.number, " of the same run arrived"));
    if (run.topology == question.current.topology()) {
      LearnOutcome(context, SenderOf(found->second, run), question);
    }
  }
  if (rank == nullptr || !Runs(found->second, question.current)) {
    EPLB_RETURN_IF_ERROR(Register(context, question, HelloOf(context, question)));
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
  sender.run.asking.number = question.number;
  sender.run.asking.ticket = question.ticket;
  sender.run.asking.begun_by = context.state.decision_count;
  context.state.asking.insert(sender.job.name);
}

void Refuse(DecisionContext& context, int64_t ticket, const absl::Status& status) {
  Respond(context, ticket, status);
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
  Respond(context, settled.ticket, ChangeOutcome{.version = settled.version});
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
  SendReplies(context);
}

void FailQuestions(DecisionContext& context, const absl::Status& why) {
  const absl::Status status = Unavailable("the job cannot be stored: ", why.ToString());
  const int64_t dropped = context.state.decision_count - 1;
  EngineReplies& replies = context.state.engine_replies;
  if (replies.decision == dropped) {
    for (const int64_t ticket : std::exchange(replies.answered, {}))
      Respond(context, ticket, status);
  }
  for (const std::string& name : context.state.asking) {
    const auto found = context.state.jobs.find(name);
    if (found == context.state.jobs.end() || !found->second.current) continue;
    Job& job = found->second;
    Asking& asking = job.current->asking;
    if (asking.begun_by != dropped || asking.ticket == 0) continue;
    // The solver may never have heard of it.
    StopSolve(context, job);
    if (job.phase == Phase::kSolving) SetPhase(context, job, Phase::kIdle);
    Respond(context, std::exchange(asking.ticket, 0), status);
  }
}

void EndEngine(DecisionContext& context, Job& job, const std::string& why) {
  Run& run = *job.current;
  Respond(context, std::exchange(run.asking.ticket, 0), Unavailable(why));
  if (run.ranks.front().session != 0) HandleAway(context, SenderOf(job, run), why);
  EndRun(context, job, v1::RUN_ENDING_LOST, why);
}

void EndIdleEngine(DecisionContext& context, Job& job) {
  if (!job.current || FindRank(job, job.current->name) == nullptr) return;
  const StepRate& rate = job.current->rate;
  const absl::Duration interval = std::max(ReportInterval(*job.current), UsualGap(rate));
  const absl::Duration patience = interval == absl::ZeroDuration()
                                      ? kUnknownIdle
                                      : std::max(kLeastIdle, kIdleIntervals * interval);
  const absl::Duration idle = context.now - std::max(rate.began, LastRise(rate));
  if (idle <= patience) return;
  EndEngine(context, job,
            absl::StrCat("no question arrived for ",
                         absl::FormatDuration(absl::Trunc(idle, absl::Seconds(1)))));
}

}  // namespace eplb::core
