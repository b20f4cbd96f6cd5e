#include "server/core/decisions/decide.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "placement/backtest/candidate.h"
#include "placement/backtest/planner.h"
#include "placement/decision/rebalance.h"
#include "placement/policies/registry.h"
#include "server/core/decisions/gpu_speeds.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/prices.h"
#include "server/core/decisions/proposal.h"
#include "server/core/decisions/question.h"
#include "server/core/state/chunking.h"
#include "server/core/state/memory.h"
#include "server/core/state/sentences.h"
#include "server/core/state/step_rate.h"
#include "server/core/state/windows.h"
#include "server/core/values/measured.h"
#include "server/core/values/views.h"

namespace eplb::core {
namespace {

bool IsDue(const State& state, const Job& job) {
  if (!MayDecide(state, job, /*behind_chunk=*/true).ok()) return false;
  const int64_t step = job.windows.complete.back().last_step;
  if (Chooses(job)) return true;  // it has its own pace
  return !job.decisions.last_step || step - *job.decisions.last_step >= EverySteps(job);
}

// Returns the solver's decision, with sentences about the job's current state added to its reason.
absl::StatusOr<CandidateDecision> DecisionOf(const Job& job, const Solved& solved) {
  EPLB_RETURN_IF_ERROR(solved.planned.status());
  if (solved.answer == nullptr) return Internal("the solver made no decision");
  EPLB_ASSIGN_OR_RETURN(CandidateDecision decision, solved.answer->decision);
  decision.reason += SpeedsClause(job);
  const std::string worse = WorseText(job.windows);
  if (!worse.empty()) absl::StrAppend(&decision.reason, "; ", worse);
  return decision;
}

// Returns the plan of a decision when the solver has answered, or its deadline has passed.
v1::Plan PlanOf(const Job& job, v1::PlanResult result, const std::string& reason) {
  const Solving& solving = job.solving;
  v1::Plan plan;
  plan.set_policy(solving.policy_name);
  plan.set_result(result);
  plan.set_split(wire::SplitName(job.current->split));
  plan.set_decided_first_step(static_cast<uint64_t>(solving.first_step));
  plan.set_decided_last_step(static_cast<uint64_t>(solving.last_step));
  if (solving.balancedness > 0) plan.set_balancedness_before(solving.balancedness);
  if (solving.seconds > 0) plan.set_solve_seconds(solving.seconds);
  *plan.mutable_times() = TimesOf(job);
  plan.set_reason(reason);
  plan.set_asked_by(solving.asked_by);
  return plan;
}

v1::Plan PlanOf(const Job& job, v1::PlanResult result, const std::string& reason,
                const CandidateDecision& decision) {
  v1::Plan plan = PlanOf(job, result, reason);
  if (const double figure = decision.balancedness_before; figure > 0) {
    plan.set_balancedness_in_force(figure);
  }
  const Prediction& prediction = decision.prediction;
  plan.set_balancedness_predicted(prediction.balancedness);
  if (prediction.error) plan.set_prediction_error(*prediction.error);
  plan.set_prediction_evidence(static_cast<uint64_t>(prediction.evidence));
  plan.set_peak_fall(decision.peak_fall);
  if (decision.net_gain_seconds) plan.set_net_gain_seconds(*decision.net_gain_seconds);
  if (decision.migration_seconds) plan.set_migration_seconds(*decision.migration_seconds);
  if (!decision.chunks.empty()) plan.set_transfers(static_cast<uint64_t>(decision.transfers));
  plan.set_num_chunks(static_cast<uint32_t>(decision.chunks.size()));
  plan.MergeFrom(decision.scenarios);
  return plan;
}

// A job that waited for the solver alone is IDLE.
void LeaveSolve(DecisionContext& context, Job& job) {
  if (job.phase == Phase::kSolving) {
    SetPhase(context, job, Phase::kIdle);
  } else {
    StopSolve(context, job);
  }
}

// Leaves the solve, with the decision on record.
void EndSolve(DecisionContext& context, Job& job, const char* event, v1::Plan plan) {
  if (!RepeatsKept(job, plan)) Remember(job);
  const std::string reason = plan.reason();
  LeaveSolve(context, job);
  RecordEvent(context, job, event, job.last_known->version, reason);
  AddPlan(context, job, std::move(plan));
}

void RecordLeftOut(DecisionContext& context, Job& job, const CandidateDecision& decision) {
  for (const std::string* text : {&decision.left_out, &decision.too_long}) {
    if (!text->empty()) RecordEvent(context, job, "left_out", job.last_known->version, *text);
  }
}

// Windows that make up the steps between two decisions.
int32_t WindowsPerDecision(const Job& job) {
  const int32_t report_every = job.current->report_every;
  const int32_t every = EverySteps(job);
  return std::max(1, every / report_every + (every % report_every == 0 ? 0 : 1));
}

absl::StatusOr<Window> EstimateSince(const DecisionContext& context, const Job& job,
                                     int64_t after_step) {
  const ReadersIn readers(context.lock);
  return SumSince(job.windows, after_step, WindowsPerDecision(job));
}

// Returns the newest windows with tokens, and how many of them the planner has not seen.
void AddWindows(const Job& job, PlannerQuestion& question) {
  // After a pause older windows say little of what comes, and each costs as much as others.
  const int64_t most_fresh = WindowsFor(question.options);
  const int64_t most =
      2 * most_fresh - 1;  // the oldest fresh one is estimated from those before it
  const std::deque<Window>& complete = job.windows.complete;
  for (auto window = complete.rbegin(); window != complete.rend(); ++window) {
    if (std::ssize(question.windows) == most) break;
    if (!HasTokens(*window->load)) continue;
    const bool is_fresh = window->last_step > job.decisions.chooser.last_step;
    if (is_fresh && question.num_fresh < most_fresh) ++question.num_fresh;
    question.windows.push_back({window->load, window->last_step - window->first_step + 1});
  }
  std::ranges::reverse(question.windows);
}

PlannerQuestion PlannerQuestionOf(const State& state, const Job& job, const Request& request) {
  const bool asked = request.force || !request.actor.empty();
  PlannerQuestion question{.state = job.decisions.chooser.state,
                           .costs = PricesOf(state, job),
                           .options = {.split = job.current->split,
                                       .policy = {.hierarchy = job.settings.hierarchy},
                                       .every = WindowsPerDecision(job),
                                       .switch_time = SwitchTimeOf(job)},
                           .speeds = job.windows.speeds,
                           .now = asked || !Chooses(job),
                           .history = job.decisions.load_history};
  if (!Chooses(job)) {
    question.options.candidates = {{job.settings.policy.name, {.windows = question.options.every}}};
  } else if (!job.current->asking.engine.empty()) {
    // An engine moves all experts of an answer at once, and nothing tells what that costs it.
    question.options.candidates = CandidatesFor(job.current->split);
    std::erase_if(question.options.candidates, [](const Candidate& candidate) {
      return candidate.policy != kIncrementalPolicyName;
    });
  }
  if (job.decisions.last_step && job.current->report_every > 0) {
    // Also a daemon that begins again keeps to the job's pace.
    question.windows_since_decision =
        (job.windows.complete.back().last_step - *job.decisions.last_step) /
        job.current->report_every;
  }
  AddWindows(job, question);
  return question;
}

// Returns the placement that a decision starts from: the current one, or the one that the chunks in
// flight and to come lead to.
absl::StatusOr<std::shared_ptr<const Placement>> IncumbentOf(const DecisionContext& context,
                                                             const Job& job) {
  if (!job.proposal) return job.last_known->placement;
  const ReadersIn readers(context.lock);
  EPLB_ASSIGN_OR_RETURN(Placement target, AfterAll(*job.proposal->after, job.chunks.rest));
  return std::make_shared<const Placement>(std::move(target));
}

// Returns the job as a decision for `request` sees it.
DecisionQuestion QuestionOf(const State& state, const Job& job,
                            std::shared_ptr<const Placement> incumbent, const Request& request) {
  return {.planner = PlannerQuestionOf(state, job, request),
          .incumbent = std::move(incumbent),
          .windows = job.windows.complete,
          .last_step = job.solving.last_step,
          .settings = job.settings,
          .staging_rows = LeastStagingRows(*job.current),
          .limits = LimitsOf(job),
          .migration = job.current->migration,
          .costs = CostsOf(state, job),
          .predictions = job.decisions.predictions,
          .force = request.force};
}

// Keeps what the planner has learned, and stores the typical loads when that is due.
void TakeState(DecisionContext& context, const PlannerOutcome& planned, Job& job) {
  Decisions& decisions = job.decisions;
  decisions.chooser = {.state = planned.state, .last_step = job.solving.last_step};
  if (planned.state == nullptr) return;
  decisions.load_history = planned.state->history;
  StoredHistory& stored = decisions.stored_history;
  stored.changed = Chooses(job) && decisions.load_history.loads().size() > 1;
  if (context.now - stored.at >= stored.wait) StoreLoadHistory(context, job);
}

// Keeps the windows that the answer goes by, and what the planner has learned.
void TakeAnswer(DecisionContext& context, const Solved& solved, Job& job) {
  if (!solved.planned.ok()) return;
  const bool preview = job.solving.preview;
  if (!preview) TakeState(context, **solved.planned, job);
  if (solved.answer == nullptr) return;
  if (!preview) job.decisions.last_step = job.solving.last_step;
  job.solving.first_step = solved.answer->first_step;
  job.solving.balancedness = solved.answer->measured_balancedness;
}

absl::Status StartSolve(DecisionContext& context, Job& job, const Window& estimate,
                        const Request& request) {
  EPLB_ASSIGN_OR_RETURN(std::shared_ptr<const Placement> incumbent, IncumbentOf(context, job));
  RefreshSpeeds(context, job, *estimate.load);
  const std::string& policy_name = job.settings.policy.name;
  job.solving = {
      .id = ++context.state.last_solve_id,
      .since = context.now,
      .force = request.force,
      .preview = request.preview,
      .asked_by = request.actor,
      .policy_name = policy_name,
      .first_step = estimate.first_step,
      .last_step = estimate.last_step,
      .balancedness = MeasuredOver(job.windows.complete, estimate.first_step, estimate.last_step,
                                   job.current->split, job.windows.speeds.get())};
  job.solving.question = std::make_shared<const DecisionQuestion>(
      QuestionOf(context.state, job, std::move(incumbent), request));
  if (job.phase == Phase::kIdle) SetPhase(context, job, Phase::kSolving);
  context.decision.effects.emplace_back(
      Solve{.job = job.name, .solve_id = job.solving.id, .question = job.solving.question});
  context.decision.reason = absl::StrCat("steps ", estimate.first_step, "..", estimate.last_step,
                                         ": asking policy ", policy_name);
  return absl::OkStatus();
}

// Returns a note for an observed job without prices, with the keys to set; empty with prices.
std::string UnpricedText(const State& state, const Job& job) {
  const Costs costs = CostsOf(state, job);
  if (costs.priced()) return "";
  if (costs.token_seconds > 0) {
    return "; not priced: the ranks did not send the bytes of an expert, set cost.stall";
  }
  return "; not priced: set cost.token_ns, cost.intra_gbps and cost.inter_gbps to see seconds";
}

// Returns the window for the record of predictions, as the run splits tokens.
PassedWindow PassedOf(const Job& job, const Window& window) {
  const GpuSpeeds* const speeds = job.windows.speeds.get();
  PassedWindow passed{.load = *window.load, .split = job.current->split, .speeds = speeds};
  if (passed.split != SplitMode::kBatch || window.split == nullptr || window.on_gpus == nullptr ||
      window.on_gpus->versions.size() != 1) {
    return passed;
  }
  passed.ran = job.windows.placements.Find(window.on_gpus->versions.front());
  passed.measured = BalancednessOf(window.on_gpus.get(), window.split.get(), speeds).value_or(0);
  return passed;
}

// Says, once, that decisions are made again: this is the first one after the frozen steps.
void TellFreezeOver(DecisionContext& context, Job& job) {
  const StepRange& freeze = job.settings.freeze_steps;
  const Windows& windows = job.windows;
  const int64_t step = windows.complete.back().last_step;
  const bool froze =
      freeze.first <= freeze.last && windows.complete.front().first_step <= freeze.last;
  if (!froze || step <= freeze.last || job.decisions.last_step.value_or(-1) > freeze.last) return;
  RecordEvent(context, job, "freeze_over", job.last_known->version,
              absl::StrCat("step ", step, ": the frozen steps ", wire::StepsText(freeze),
                           " are over, decisions are made again"));
}

// Returns true if this decision is skipped after a proposal that did not commit.
bool BacksOff(DecisionContext& context, Job& job, int64_t step) {
  if (job.decisions.back_off.to_skip <= 0) return false;
  --job.decisions.back_off.to_skip;
  Remember(job);
  RecordEvent(
      context, job, "kept", job.last_known->version,
      absl::StrCat("step ", step, ": kept, backing off after a proposal that did not ", "commit; ",
                   CountText(job.decisions.back_off.to_skip, "more decision"), " will be skipped"));
  return true;
}

// The settings changed while the solver computed: what it answered is not what they ask for.
void AskAgain(DecisionContext& context, Job& job) {
  const Request request{
      .force = job.solving.force, .preview = job.solving.preview, .actor = job.solving.asked_by};
  LeaveSolve(context, job);
  absl::Status asked = MayDecide(context.state, job, /*behind_chunk=*/true);
  if (asked.ok()) asked = SolveNow(context, job, request);
  if (asked.ok()) return;
  RecordEvent(context, job, "kept", job.last_known->version,
              absl::StrCat("kept, the settings changed while the policy computed; ",
                           std::string(asked.message())));
}

// Returns true while a chunk is in flight that a newer decision may follow. What an operator asked
// for is not replaced.
bool MayFollow(const Job& job) {
  const bool in_flight = job.phase == Phase::kPreparing || job.phase == Phase::kVoting;
  return in_flight && job.solving.id == 0 && job.chunks.asked_by.empty();
}

// Records the plan and takes its chunks, none of which is proposed yet.
void TakeChunks(DecisionContext& context, Job& job, Bundle& bundle) {
  StopSolve(context, job);
  job.chunks = {.rest = {std::make_move_iterator(bundle.chunks.begin()),
                         std::make_move_iterator(bundle.chunks.end())},
                .total = static_cast<int32_t>(bundle.chunks.size()),
                .falls = std::move(bundle.falls),
                .reason = bundle.plan.reason(),
                .decided_first_step = static_cast<int64_t>(bundle.plan.decided_first_step()),
                .decided_last_step = static_cast<int64_t>(bundle.plan.decided_last_step()),
                .policy = bundle.plan.policy(),
                .asked_by = bundle.plan.asked_by(),
                .despite_pause = bundle.despite_pause};
  AddPlan(context, job, std::move(bundle.plan));
  Remember(job);
  job.chunks.decision = static_cast<int64_t>(job.plans.back().plan());
  SettlePlan(context, job, "");  // one of which no chunk was proposed
}

// Lets the decision's chunks replace those that are still to be proposed: they begin where the
// chunk in flight ends. Layers that were to change anyway are worth what both decisions gain.
void ReplaceRest(DecisionContext& context, Job& job, Bundle bundle, const Placement& target) {
  const std::deque<Chunk>& rest = job.chunks.rest;
  std::vector<double> falls = bundle.falls;
  for (const Chunk& chunk : rest) {
    for (const LayerPlacement& layer : chunk.layers) {
      const auto index = static_cast<size_t>(layer.layer.value);
      if (index >= job.chunks.falls.size()) continue;
      falls[index] =
          bundle.falls[index] + job.chunks.falls[index];  // once for all parts of a layer
    }
  }
  bundle.falls = std::move(falls);
  absl::StatusOr<Cut> cut;
  {
    const ReadersIn readers(context.lock);
    cut = CutAll(*job.proposal->after, target, bundle.falls, CostsOf(context.state, job),
                 LimitsOf(job), LeastStagingRows(*job.current));
  }
  v1::Plan& plan = bundle.plan;
  if (!rest.empty()) {
    absl::StrAppend(plan.mutable_reason(), "; ", cut.ok() ? "replaces " : "would replace ",
                    CountText(std::ssize(rest), "chunk"), " of decision ", job.chunks.decision);
  }
  if (!cut.ok() || cut->chunks.empty()) {
    if (cut.ok()) job.chunks = {};
    plan.set_result(v1::PLAN_RESULT_KEPT);
    plan.set_num_chunks(0);
    plan.clear_transfers();
    absl::StrAppend(plan.mutable_reason(), "; kept, ",
                    cut.ok() ? "nothing else is to be moved" : cut.status().ToString());
    EndSolve(context, job, "kept", std::move(plan));
    return;
  }
  bundle.chunks = std::move(cut->chunks);
  plan.set_num_chunks(static_cast<uint32_t>(bundle.chunks.size()));
  plan.set_transfers(static_cast<uint64_t>(cut->transfers));
  absl::StrAppend(plan.mutable_reason(), "; from the chunk in flight on that is ",
                  CountText(std::ssize(bundle.chunks), "chunk"), " with ",
                  CountText(cut->transfers, "transfer"));
  TakeChunks(context, job, bundle);
}

}  // namespace

void WatchWindow(const DecisionContext& context, Job& job) {
  if (!job.last_known || !job.last_known->placement || !job.current) return;
  if (!job.windows.newest.has_tokens) return;  // it shows nothing of any placement
  if (!(job.last_known->placement->topology() == job.current->topology)) return;
  PredictionRecord predictions = job.decisions.predictions;
  {
    const ReadersIn readers(context.lock);
    // Shapes were checked when the window was added and when the placement was adopted.
    if (!predictions.Observe(PassedOf(job, job.windows.complete.back())).ok()) return;
  }
  job.decisions.predictions = std::move(predictions);
}

absl::Status MayDecide(const State& state, const Job& job, bool behind_chunk) {
  const auto no = [&job](const std::string& why) {
    return FailedPrecondition("job ", job.name, " ", why);
  };
  if (state.draining) return no("is served by a daemon that drains");
  if (job.phase != Phase::kIdle && !(behind_chunk && MayFollow(job))) return no(StateText(job));
  if (job.orders.paused) {
    const bool says_so = job.orders.pause_reason.starts_with("paused");
    return no(absl::StrCat(says_so ? "is " : "is paused: ", job.orders.pause_reason));
  }
  if (job.current->num_connected < job.current->world_size()) {
    return no(absl::StrCat("has ", job.current->num_connected, " of ", job.current->world_size(),
                           " ranks connected"));
  }
  if (job.windows.complete.empty()) return no("has no complete window yet");
  const int64_t step = job.windows.complete.back().last_step;
  if (!job.windows.newest.has_tokens) {
    return no(
        absl::StrCat("counted no tokens in steps ", job.windows.newest.first_step, "..", step));
  }
  if (job.settings.freeze_steps.Holds(step)) {
    return no(absl::StrCat("is at step ", step, ", and the steps ",
                           wire::StepsText(job.settings.freeze_steps), " are frozen"));
  }
  return absl::OkStatus();
}

absl::Status SolveNow(DecisionContext& context, Job& job, const Request& request) {
  EPLB_ASSIGN_OR_RETURN(const Window estimate, EstimateSince(context, job, -1));
  return StartSolve(context, job, estimate, request);
}

void MaybeSolve(DecisionContext& context, Job& job) {
  if (!IsDue(context.state, job)) return;
  TellFreezeOver(context, job);
  const int64_t step = job.windows.complete.back().last_step;
  const int64_t after_step = job.decisions.last_step.value_or(-1);
  if (!Chooses(job)) {
    job.decisions.last_step = step;
    if (BacksOff(context, job, step)) return;
  }
  const absl::StatusOr<Window> estimate = EstimateSince(context, job, after_step);
  absl::Status asked = estimate.status();
  if (asked.ok()) asked = StartSolve(context, job, *estimate, {});
  if (asked.ok()) return;
  Remember(job);
  RecordEvent(context, job, "kept", job.last_known->version,
              absl::StrCat("step ", step, ": kept, ", asked.ToString()));
}

void HandleSolved(DecisionContext& context, const Solved& solved) {
  const auto found = context.state.jobs.find(solved.job);
  if (found == context.state.jobs.end()) return;
  Job& job = found->second;
  if (job.solving.id == 0 || solved.solve_id != job.solving.id) return;
  job.solving.id = 0;  // it is answered
  if (!(job.solving.question->settings == job.settings)) return AskAgain(context, job);
  job.solving.began_at = solved.began_at;
  job.solving.seconds = job.decisions.solve_seconds = solved.seconds;
  TakeAnswer(context, solved, job);
  const PlannerState* const planner =
      Chooses(job) && solved.planned.ok() ? (*solved.planned)->state.get() : nullptr;
  if (solved.planned.ok() && solved.answer == nullptr) {
    LeaveSolve(context, job);
    context.decision.reason =
        absl::StrCat("no decision is due; ", BacktestText((*solved.planned)->state->backtest));
    return;
  }
  // The back-test of a policy that chooses continues meanwhile.
  const bool asked = job.solving.force || !job.solving.asked_by.empty();
  if (planner != nullptr && !asked && BacksOff(context, job, job.solving.last_step)) {
    LeaveSolve(context, job);
    return;
  }
  absl::StatusOr<CandidateDecision> decision = DecisionOf(job, solved);
  if (!decision.ok()) {
    AbandonSolve(context, job,
                 absl::StrCat("kept, policy ", job.solving.policy_name,
                              " failed: ", decision.status().ToString()),
                 true);
    return;
  }
  const bool preview = job.solving.preview;
  // A decision on steps without tokens predicts nothing.
  if (!preview && decision->balancedness_computed > 0) {
    job.decisions.predictions.Begin(decision->target, decision->balancedness_computed,
                                    decision->prediction);
  }
  if (planner != nullptr) {
    const std::string text = BacktestText(planner->backtest);
    if (!text.empty()) absl::StrAppend(&decision->reason, "; ", text);
  }
  RecordLeftOut(context, job, *decision);
  const bool observe = job.settings.observe || preview;
  if (decision->chunks.empty()) {
    job.chunks.decided_last_step = job.solving.last_step;  // it confirms those still to come
    EndSolve(context, job, "kept", PlanOf(job, v1::PLAN_RESULT_KEPT, decision->reason, *decision));
  } else if (observe) {
    const std::string reason =
        absl::StrCat("would have rebalanced, ", decision->reason, UnpricedText(context.state, job));
    EndSolve(context, job, "observed", PlanOf(job, v1::PLAN_RESULT_OBSERVED, reason, *decision));
  } else if (job.current->num_connected < job.current->world_size()) {
    EndSolve(context, job, "kept",
             PlanOf(job, v1::PLAN_RESULT_KEPT, "kept, not every rank is connected", *decision));
  } else {
    v1::Plan plan = PlanOf(job, v1::PLAN_RESULT_PROPOSED, decision->reason, *decision);
    if (planner != nullptr) AddCandidates(*planner, plan.mutable_candidates());
    Bundle bundle{.chunks = std::move(decision->chunks),
                  .falls = std::move(decision->falls),
                  .plan = std::move(plan)};
    if (job.proposal) return ReplaceRest(context, job, std::move(bundle), decision->target);
    ProposeChunks(context, job, std::move(bundle));
  }
}

void ProposeChunks(DecisionContext& context, Job& job, Bundle bundle) {
  TakeChunks(context, job, bundle);
  ProposeNextChunk(context, job, std::move(bundle.done));
}

void HandleSolveStarted(DecisionContext& context, const SolveStarted& started) {
  const auto found = context.state.jobs.find(started.job);
  if (found == context.state.jobs.end()) return;
  Job& job = found->second;
  if (job.solving.id == 0 || started.solve_id != job.solving.id) return;
  job.solving.began = true;
  job.solving.since = context.now;
  if (job.phase == Phase::kSolving) job.in_phase.since = context.now;
}

absl::Duration SolveDeadline(const Config& config, const Job& job) {
  return job.solving.began ? config.solve_deadline : kSolveWaits * config.solve_deadline;
}

void CheckSolveDeadline(DecisionContext& context, Job& job) {
  if (job.solving.id == 0) return;
  const absl::Duration deadline = SolveDeadline(context.state.config, job);
  if (context.now - job.solving.since < deadline) return;
  if (job.solving.began) {
    return AbandonSolve(context, job,
                        absl::StrCat("kept, policy ", job.solving.policy_name,
                                     " gave no placement within ", absl::FormatDuration(deadline)),
                        true);
  }
  std::vector<std::string> ahead;
  for (const auto& [name, other] : context.state.jobs) {
    if (other.solving.id != 0 && other.solving.began) ahead.push_back(name);
  }
  AbandonSolve(
      context, job,
      absl::StrCat("kept, the solver did not begin within ", absl::FormatDuration(deadline),
                   "; it works for ", ahead.empty() ? "no job" : absl::StrJoin(ahead, ", ")),
      true);
}

void AbandonSolve(DecisionContext& context, Job& job, const std::string& reason, bool failed) {
  EndSolve(context, job, "kept",
           PlanOf(job, failed ? v1::PLAN_RESULT_FAILED : v1::PLAN_RESULT_KEPT, reason));
}

}  // namespace eplb::core
