#include "server/core/admin.h"

#include <iterator>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "placement/split/batch_split.h"
#include "proto/wire/message_json.h"
#include "proto/wire/messages.h"
#include "proto/wire/names.h"
#include "server/core/decisions/decide.h"
#include "server/core/decisions/gpu_speeds.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/prices.h"
#include "server/core/decisions/proposal.h"
#include "server/core/decisions/recovery.h"
#include "server/core/ranks/expiry.h"
#include "server/core/ranks/questions.h"
#include "server/core/state/chunking.h"
#include "server/core/state/memory.h"
#include "server/core/state/sentences.h"
#include "server/core/state/windows.h"

namespace eplb::core {
namespace {

constexpr size_t kMaxComment = 256;

constexpr const char* kVerbNames[] = {"rebalance", "pause",      "resume",
                                      "rollback",  "set_policy", "forget"};
static_assert(std::size(kVerbNames) == std::variant_size_v<Verb>);

const char* NameOf(const Verb& verb) { return kVerbNames[verb.index()]; }

// A change under way: what it does to the job, told by its verb.
struct Deed {
  DecisionContext& context;
  Job& job;
  const Change& change;
  std::string outcome = {};  // one sentence
  std::string before = {};
  std::string after = {};

  std::string By() const {
    return absl::StrCat(" by ", change.actor, change.comment.empty() ? "" : ": ", change.comment);
  }
};

absl::Status CheckChange(const Change& change) {
  if (change.job.empty()) return InvalidInput("job is empty");
  EPLB_RETURN_IF_ERROR(
      wire::CheckPlainName("request_id", change.request_id, wire::kMaxRequestIdLength));
  if (!change.expect_version || *change.expect_version < 0) {
    return InvalidInput("expect_version is not set, expected the version that the caller read");
  }
  if (change.comment.size() > kMaxComment) {
    return InvalidInput("comment has ", change.comment.size(), " bytes, expected at most ",
                        kMaxComment);
  }
  return absl::OkStatus();
}

int64_t VersionOf(const Job& job) { return job.last_known ? job.last_known->version : 0; }

absl::Status CheckJob(const State& state, const Job& job, const Change& change) {
  const auto seen = std::ranges::find_if(job.orders.requests, [&change](const DoneRequest& done) {
    return done.request_id == change.request_id;
  });
  if (seen != job.orders.requests.end()) {
    return absl::AlreadyExistsError(
        absl::StrCat("request_id ", change.request_id, " was done before: ", seen->outcome));
  }
  const int64_t version = VersionOf(job);
  if (*change.expect_version != version) {
    return Aborted("expect_version is ", *change.expect_version, ", the current version is ",
                   version);
  }
  if (state.draining) return FailedPrecondition("the daemon drains");
  const bool needs_placement = !std::holds_alternative<ForgetJob>(change.verb) &&
                               !std::holds_alternative<Pause>(change.verb) &&
                               !std::holds_alternative<Resume>(change.verb);
  if (!job.last_known && needs_placement) {
    return FailedPrecondition("job ", job.name, " has not reported what it runs; it waits for ",
                              WaitingFor(job));
  }
  return absl::OkStatus();
}

// The id is used up from here on; goes out with the Store of the change.
DoneRequest UseUp(Deed& deed) {
  DoneRequest done{.request_id = deed.change.request_id, .outcome = deed.outcome};
  deed.job.orders.requests.push_back(done);
  if (std::ssize(deed.job.orders.requests) > kMaxDoneRequests) deed.job.orders.requests.pop_front();
  return done;
}

// Stores what was changed. Nothing else may have been emitted before.
void Write(Deed& deed) {
  DoneRequest done = UseUp(deed);
  if (BelongsInStore(deed.job)) StoreJob(deed.context, deed.job, std::move(done));
}

void Audit(Deed& deed) {
  Record record = RecordOf(deed.job, NameOf(deed.change.verb), deed.outcome);
  record.event.set_actor(deed.change.actor);
  record.event.set_before(deed.before);
  record.event.set_after(deed.after);
  RecordChange(deed.context, std::move(record));
}

std::string PauseText(const Job& job) {
  return job.orders.paused ? absl::StrCat("paused: ", job.orders.pause_reason) : "not paused";
}

absl::Status Do(Deed& deed, const Rebalance& rebalance) {
  DecisionContext& context = deed.context;
  Job& job = deed.job;
  EPLB_RETURN_IF_ERROR(MayDecide(context.state, job));
  deed.outcome = absl::StrCat("policy ", job.settings.policy.name, " was asked",
                              rebalance.force ? ", whether it pays or not," : "", deed.By());
  Write(deed);
  Audit(deed);
  absl::Status solving =
      SolveNow(context, job, {.force = rebalance.force, .actor = deed.change.actor});
  if (solving.ok()) return solving;
  // Windows whose sum does not fit into a number: the decision is made, and it is to keep.
  RecordEvent(context, job, "kept", job.last_known->version,
              absl::StrCat("kept, ", solving.ToString()));
  return absl::OkStatus();
}

absl::Status Do(Deed& deed, const Pause&) {
  Job& job = deed.job;
  deed.before = PauseText(job);
  // The first operator's reason stays, whose pause this is still. A rollback pauses by itself.
  const bool again = job.orders.paused && job.orders.pause_reason.starts_with("paused by ");
  if (!again) job.orders.pause_reason = absl::StrCat("paused", deed.By());
  job.orders.paused = true;
  job.orders.paused_by_lost_store = false;  // now it is the operator's
  job.memory.is_ours = true;                // ranks that have yet to come do not lift it
  job.chunks.despite_pause = false;
  Remember(job);
  deed.after = PauseText(job);
  if (again) {
    deed.outcome =
        absl::StrCat("paused before: ", job.orders.pause_reason, "; asked for again", deed.By());
    Write(deed);
    Audit(deed);
    return absl::OkStatus();
  }
  deed.outcome = job.proposal
                     ? absl::StrCat(job.orders.pause_reason, "; version ",
                                    job.proposal->message.version, " is in flight and ends first")
                     : job.orders.pause_reason;
  Write(deed);
  Audit(deed);
  if (job.solving.id != 0) {
    AbandonSolve(deed.context, job, "kept, the job was paused while the policy computed", false);
  }
  return absl::OkStatus();
}

// The ranks are asked to forget what is in flight; what they run decides what it became.
void EndQuarantine(DecisionContext& context, Job& job, const std::string& why) {
  if (job.proposal) {
    for (const Rank& rank : job.current->ranks) {
      if (!IsFinal(rank)) CancelFrom(context, rank, *job.proposal);
    }
    job.proposal.reset();
    SettlePlan(context, job, why);
  }
  EnterRecovery(context, job, why);
}

absl::Status Do(Deed& deed, const Resume&) {
  Job& job = deed.job;
  const bool quarantined = job.phase == Phase::kQuarantine;
  const char* did = "resumed";
  if (quarantined) {
    did = "the quarantine was ended";
  } else if (!job.orders.paused) {
    did = "was not paused; resume was asked for";  // no error, like a second pause
  }
  deed.before = absl::StrCat(PauseText(job), quarantined ? ", QUARANTINE" : "");
  job.orders.paused = false;
  job.orders.paused_by_lost_store = false;
  job.orders.pause_reason.clear();
  job.quarantine.clear();
  Remember(job);
  deed.after = PauseText(job);
  deed.outcome = absl::StrCat(did, deed.By());
  Write(deed);
  Audit(deed);
  if (quarantined) EndQuarantine(deed.context, job, deed.outcome);
  return absl::OkStatus();
}

absl::Status CheckRollback(const Job& job, int64_t version, const Rollback& rollback) {
  const auto no = [&job](const std::string& why) {
    return FailedPrecondition("job ", job.name, " ", why);
  };
  if (job.phase != Phase::kIdle && job.phase != Phase::kSolving) return no(StateText(job));
  if (job.current->num_connected < job.current->world_size()) {
    return no(absl::StrCat("has ", job.current->num_connected, " of ", job.current->world_size(),
                           " ranks connected"));
  }
  EPLB_RETURN_IF_ERROR(rollback.placement.status());
  if (!(rollback.placement->topology() == job.current->topology)) {
    return no(absl::StrCat("has another shape now than at version ", version));
  }
  if (*rollback.placement == *job.last_known->placement) {
    return no(absl::StrCat("runs the placement of version ", version, " already"));
  }
  return absl::OkStatus();
}

// How even both placements are on the newest window, should there be one.
void MeasureRollback(const Job& job, const Placement& target, v1::Plan& plan) {
  if (job.windows.complete.empty()) return;
  const Window& window = job.windows.complete.back();
  const SplitMode split = job.current->split;
  plan.set_split(wire::SplitName(split));
  const GpuSpeeds* speeds = job.windows.speeds.get();
  const absl::StatusOr<Evaluation> before =
      EvaluateSplit(*window.load, *job.last_known->placement, split, speeds);
  const absl::StatusOr<Evaluation> after = EvaluateSplit(*window.load, target, split, speeds);
  if (!before.ok() || !after.ok()) return;
  plan.set_decided_first_step(static_cast<uint64_t>(window.first_step));
  plan.set_decided_last_step(static_cast<uint64_t>(window.last_step));
  const double measured =
      MeasuredOver(job.windows.complete, window.first_step, window.last_step, split, speeds);
  if (measured > 0) plan.set_balancedness_before(measured);
  if (const auto& figure = before->mean_balancedness) plan.set_balancedness_in_force(*figure);
  if (const auto& figure = after->mean_balancedness) plan.set_balancedness_predicted(*figure);
  if (before->peak_load > 0) plan.set_peak_fall(1 - after->peak_load / before->peak_load);
}

absl::Status Do(Deed& deed, const Rollback& rollback) {
  Job& job = deed.job;
  EPLB_ASSIGN_OR_RETURN(const int64_t version, RollbackTargetOf(job, rollback.to_version));
  v1::Plan plan;
  plan.set_policy(wire::kRollbackPolicy);
  plan.set_result(v1::PLAN_RESULT_PROPOSED);
  plan.set_split(wire::SplitName(SplitMode::kEqual));
  Cut cut;
  {
    const ReadersIn readers(deed.context.lock);
    EPLB_RETURN_IF_ERROR(CheckRollback(job, version, rollback));
    EPLB_ASSIGN_OR_RETURN(cut, CutAll(*job.last_known->placement, *rollback.placement, {},
                                      CostsOf(deed.context.state, job), LimitsOf(job),
                                      LeastStagingRows(*job.current)));
    MeasureRollback(job, *rollback.placement, plan);
  }
  deed.before = absl::StrCat("version ", job.last_known->version, ", ", PauseText(job));
  job.orders.paused = true;
  job.orders.paused_by_lost_store = false;
  job.orders.pause_reason = absl::StrCat(kForRollback, version, deed.By());
  deed.after = absl::StrCat("the placement of version ", version, ", paused");
  deed.outcome = absl::StrCat("the placement of version ", version, " is proposed in ",
                              CountText(static_cast<int64_t>(cut.chunks.size()), "chunk"), " with ",
                              CountText(cut.transfers, "transfer"), "; paused until resume");
  plan.set_reason(deed.outcome);
  plan.set_transfers(static_cast<uint64_t>(cut.transfers));
  plan.set_num_chunks(static_cast<uint32_t>(cut.chunks.size()));
  plan.set_asked_by(deed.change.actor);
  ProposeChunks(deed.context, job,
                {.chunks = std::move(cut.chunks),
                 .plan = std::move(plan),
                 .despite_pause = true,
                 .done = UseUp(deed)});
  Audit(deed);
  return absl::OkStatus();
}

absl::Status Do(Deed& deed, const SetPolicy& set) {
  Job& job = deed.job;
  if (set.settings.empty()) {
    return InvalidInput("settings are empty, expected at least one to change");
  }
  EPLB_RETURN_IF_ERROR(wire::CheckPatch(set.settings));
  Settings settings = wire::Patched(job.settings, set.settings);
  if (job.current) EPLB_RETURN_IF_ERROR(CheckFits(settings, job.current->topology));
  deed.before = wire::SettingsText(job.settings, set.settings);
  job.orders.patch = wire::Merged(std::move(job.orders.patch), set.settings);
  job.settings = std::move(settings);
  Remember(job);
  deed.after = wire::SettingsText(job.settings, set.settings);
  deed.outcome = absl::StrCat("set ", deed.after, " (was ", deed.before, ")", deed.By());
  Write(deed);
  Audit(deed);
  return absl::OkStatus();
}

// Forgets everything of the job except its audit log.
absl::Status Do(Deed& deed, const ForgetJob&) {
  Job& job = deed.job;
  if (job.current && job.current->ending == Ending::kLive && !job.current->asking.engine.empty() &&
      job.current->asking.ticket == 0) {
    EndEngine(deed.context, job, "an operator forgot the job");  // it may ask again
  }
  if (HasSession(job)) {
    return FailedPrecondition("job ", job.name,
                              " has ranks connected, expected none: end its run first");
  }
  deed.before = wire::EnumText(StateOf(job));
  deed.after = "forgotten";
  deed.outcome = absl::StrCat("forgotten", deed.By());
  deed.context.decision.effects.emplace_back(Forget{job.name, /*required=*/BelongsInStore(job)});
  Audit(deed);
  return absl::OkStatus();
}

void Refuse(DecisionContext& context, const Change& change, const Job* job,
            const absl::Status& status) {
  ++context.state.counters.changes_refused;
  // A name that is no job's gets no log of its own, or names would grow without bound.
  const Job none{};
  Record record =
      RecordOf(job == nullptr ? none : *job, "refused",
               absl::StrCat(NameOf(change.verb), " was refused: ", std::string(status.message())));
  record.event.set_actor(change.actor);
  RecordChange(context, std::move(record));
  context.decision.effects.emplace_back(Reply{change.ticket, status});
}

// The policy is asked as for a job that is observed. The id stays unused.
absl::Status PreviewRebalance(DecisionContext& context, Job& job, const Change& change,
                              ChangeOutcome& outcome) {
  EPLB_RETURN_IF_ERROR(MayDecide(context.state, job));
  const bool force = std::get<Rebalance>(change.verb).force;
  EPLB_RETURN_IF_ERROR(
      SolveNow(context, job, {.force = force, .preview = true, .actor = change.actor}));
  outcome.state = StateOf(job);
  outcome.outcome = absl::StrCat("policy ", job.settings.policy.name,
                                 " is asked; the decision is recorded, and nothing is proposed");
  return absl::OkStatus();
}

Job& CopyOf(const DecisionContext& context, const Job& job, State& state) {
  const ReadersIn readers(context.lock);
  return state.jobs.emplace(job.name, job).first->second;
}

// Does it to a copy of the job, which is thrown away with its effects. cost: the copy of a job.
absl::Status PreviewOnCopy(const DecisionContext& context, const Job& job, const Change& change,
                           ChangeOutcome& outcome) {
  State trial;
  trial.config = context.state.config;
  trial.term = context.state.term;
  trial.term_stored = context.state.term_stored;
  trial.decision_count = context.state.decision_count;
  trial.last_solve_id = context.state.last_solve_id;
  DecisionContext trial_context{
      .state = trial, .now = context.now, .decision = {}, .lock = context.lock};
  Job& copy = CopyOf(context, job, trial);
  Deed deed{.context = trial_context, .job = copy, .change = change};
  EPLB_RETURN_IF_ERROR(
      std::visit([&deed](const auto& verb) { return Do(deed, verb); }, change.verb));
  outcome = {.version = VersionOf(job),
             .state = StateOf(copy),
             .outcome = deed.outcome,
             .before = deed.before,
             .after = deed.after};
  return absl::OkStatus();
}

// Nothing happened, so the audit log has no line of it.
void HandlePreview(DecisionContext& context, const Change& change) {
  State& state = context.state;
  ChangeOutcome outcome;
  absl::Status status = CheckChange(change);
  const auto found = state.jobs.find(change.job);
  if (status.ok() && found == state.jobs.end()) status = NotFound("no such job");
  if (status.ok()) status = CheckJob(state, found->second, change);
  if (status.ok()) {
    Job& job = found->second;
    outcome.version = VersionOf(job);
    status = std::holds_alternative<Rebalance>(change.verb)
                 ? PreviewRebalance(context, job, change, outcome)
                 : PreviewOnCopy(context, job, change, outcome);
  }
  context.decision.effects.emplace_back(
      Reply{change.ticket, status.ok() ? absl::StatusOr<ChangeOutcome>(outcome) : status});
}

}  // namespace

void HandleChange(DecisionContext& context, const Change& change) {
  if (change.preview) {
    HandlePreview(context, change);
    return;
  }
  State& state = context.state;
  absl::Status status = CheckChange(change);
  const auto found = state.jobs.find(change.job);
  if (status.ok() && found == state.jobs.end()) status = NotFound("no such job");
  if (found == state.jobs.end()) {
    Refuse(context, change, nullptr, status);
    return;
  }
  Job& job = found->second;
  if (status.ok()) status = CheckJob(state, job, change);
  if (status.ok()) {
    Undo undo = UndoOf(context, job, change.ticket, NameOf(change.verb));
    undo.actor = change.actor;
    Deed deed{.context = context, .job = job, .change = change};
    status = std::visit([&deed](const auto& verb) { return Do(deed, verb); }, change.verb);
    if (status.ok()) {
      ++state.counters.changes;
      const bool is_set = std::holds_alternative<SetPolicy>(change.verb);
      state.undo = std::move(undo);
      context.decision.effects.emplace_back(
          Reply{change.ticket, ChangeOutcome{.version = VersionOf(job),
                                             .state = StateOf(job),
                                             .outcome = deed.outcome,
                                             .before = is_set ? deed.before : "",
                                             .after = is_set ? deed.after : ""}});
      if (std::holds_alternative<ForgetJob>(change.verb)) {
        StopSolve(context, job);
        state.jobs.erase(found);
      }
      return;
    }
  }
  Refuse(context, change, &job, status);
}

void UndoChange(DecisionContext& context, const absl::Status& status) {
  State& state = context.state;
  if (!state.undo || state.undo->decision_count + 1 != state.decision_count) return;
  Undo undo = *std::exchange(state.undo, std::nullopt);
  state.counters = undo.counters;
  ++state.counters.changes_refused;
  const std::string why = absl::StrCat("it cannot be stored: ", std::string(status.message()));
  Record record = RecordOf(undo.job, "refused", absl::StrCat(undo.verb, " was refused: ", why));
  record.event.set_actor(undo.actor);
  RecordChange(context, std::move(record));
  context.decision.effects.emplace_back(Reply{undo.ticket, Unavailable(why)});
  const std::string name = undo.job.name;  // a job that was forgotten is known again
  state.jobs.insert_or_assign(name, std::move(undo.job));
}

}  // namespace eplb::core
