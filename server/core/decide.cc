#include "server/core/decide.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "placement/align.h"
#include "placement/rebalance.h"
#include "placement/status_macros.h"
#include "server/core/held.h"
#include "server/core/proposal.h"
#include "server/core/sentences.h"
#include "server/core/windows.h"

namespace eplb::core {
namespace {

// The candidate without the layers that need more staging than the ranks have.
struct Affordable {
  explicit Affordable(const Placement& incumbent) : target(incumbent) {}

  Placement target;
  int64_t num_layers = 0;
  int64_t transfers = 0;
  std::vector<int32_t> left_out;
  int64_t rows_needed = 0;  // of the left out layer that needs most
};

absl::StatusOr<Affordable> FitIntoStaging(const Question& question, const Placement& candidate) {
  std::vector<LayerPlacement> kept;
  Affordable result{question.incumbent};
  for (int32_t index = 0; index < question.incumbent.topology().num_layers(); ++index) {
    const LayerId layer{index};
    LayerPlacement next = candidate.Layer(layer);
    if (next == question.incumbent.Layer(layer)) continue;
    EPLB_ASSIGN_OR_RETURN(const MigrationPlan plan, PlanMigration(question.incumbent, candidate,
                                                                  {&layer, 1}, question.migration));
    if (plan.max_incoming_per_gpu_and_layer > question.staging_rows) {
      result.left_out.push_back(index);
      result.rows_needed =
          std::max<int64_t>(result.rows_needed, plan.max_incoming_per_gpu_and_layer);
      continue;
    }
    result.transfers += static_cast<int64_t>(plan.transfers.size());
    kept.push_back(std::move(next));
  }
  result.num_layers = static_cast<int64_t>(kept.size());
  EPLB_ASSIGN_OR_RETURN(result.target, question.incumbent.WithLayers(kept));
  return result;
}

std::string Steps(const Question& question) {
  return absl::StrCat("steps ", question.first_step, "..", question.last_step);
}

bool IsFrozen(const Config& config, int64_t step) {
  return config.freeze_first_step <= step && step <= config.freeze_last_step;
}

bool IsDue(const State& state, const Job& job) {
  if (job.phase != Phase::kIdle || state.draining || job.windows.complete.empty()) return false;
  if (job.current->num_connected < job.current->world_size()) return false;
  const int64_t step = job.windows.complete.back().last_step;
  if (IsFrozen(state.config, step)) return false;
  return !job.last_decision_step ||
         step - *job.last_decision_step >= state.config.policy_every_steps;
}

int64_t LeastStagingRows(const Incarnation& incarnation) {
  return std::min_element(
             incarnation.ranks.begin(), incarnation.ranks.end(),
             [](const Rank& a, const Rank& b) { return a.staging_rows < b.staging_rows; })
      ->staging_rows;
}

// With the job's bytes, and the time of a token shared by the lanes, which split the tokens.
Costs CostsOf(const State& state, const Incarnation& incarnation) {
  Costs costs = state.config.costs;
  costs.token_seconds *= static_cast<double>(incarnation.topology.num_gpus()) /
                         static_cast<double>(incarnation.world_size());
  costs.expert = incarnation.migration;
  if (costs.replica_gradient_bytes > 0) costs.replica_weight_bytes = costs.expert.weight_bytes;
  return costs;
}

absl::StatusOr<Verdict> JudgeSolution(const State& state, const Job& job, const Solved& solved) {
  EPLB_RETURN_IF_ERROR(solved.placement.status());
  const Placement& candidate = *solved.placement;
  if (!(candidate.topology() == job.current->topology)) {
    return absl::InvalidArgumentError("the solution has another shape than the job");
  }
  return Judge({.load = *job.solving.load,
                .first_step = job.solving.first_step,
                .last_step = job.solving.last_step,
                .incumbent = *job.known->placement,
                .candidate = candidate,
                .min_gain = state.config.min_gain,
                .layers_per_chunk = state.config.layers_per_chunk,
                .staging_rows = LeastStagingRows(*job.current),
                .migration = job.current->migration,
                .costs = CostsOf(state, *job.current),
                .record = &job.record,
                .every_steps = state.config.policy_every_steps});
}

// Takes the chunks of `affordable` when the rule says so; the reason either way.
absl::Status Settle(const Question& question, const Affordable& affordable,
                    const RebalanceVerdict& judged, Verdict& verdict) {
  verdict.reason = absl::StrCat(Steps(question), ": ", judged.reason);
  if (!judged.rebalance) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(verdict.chunks, CutIntoChunks(question.incumbent, affordable.target,
                                                      question.layers_per_chunk));
  verdict.migration_seconds = judged.migration.seconds;
  absl::StrAppend(&verdict.reason, ", ", CountText(affordable.num_layers, "layer"), " in ",
                  CountText(static_cast<int64_t>(verdict.chunks.size()), "chunk"), ", ",
                  CountText(affordable.transfers, "transfer"));
  if (question.costs.token_seconds > 0 && judged.migration.bytes > 0) {
    absl::StrAppend(&verdict.reason, ", ", BytesText(judged.migration.bytes));
  }
  return absl::OkStatus();
}

// Back to where the record began, should the placements since have lost too much.
absl::Status ConsiderReturn(const Question& question, RebalanceQuestion rebalance,
                            Verdict& verdict) {
  EPLB_ASSIGN_OR_RETURN(const Placement start,
                        Align(question.incumbent, *rebalance.record.start()));
  EPLB_ASSIGN_OR_RETURN(const Affordable affordable, FitIntoStaging(question, start));
  if (affordable.num_layers == 0) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const RebalanceVerdict judged,
                        JudgeReturn({.load = rebalance.load,
                                     .num_steps = rebalance.num_steps,
                                     .incumbent = rebalance.incumbent,
                                     .candidate = affordable.target,
                                     .min_gain = rebalance.min_gain,
                                     .steps_to_next = rebalance.steps_to_next,
                                     .costs = rebalance.costs,
                                     .record = rebalance.record}));
  return judged.rebalance ? Settle(question, affordable, judged, verdict) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<Verdict> Judge(const Question& question) {
  EPLB_ASSIGN_OR_RETURN(const Affordable affordable, FitIntoStaging(question, question.candidate));
  Verdict verdict;
  if (!affordable.left_out.empty()) {
    verdict.left_out = absl::StrFormat(
        "%s: layer%s %s left out, %d rows of staging on one GPU are needed and the ranks have %d",
        Steps(question), affordable.left_out.size() == 1 ? "" : "s",
        absl::StrJoin(affordable.left_out, ", "), affordable.rows_needed, question.staging_rows);
  }
  Costs costs = question.costs;
  costs.expert = question.migration;
  const TrackRecord none;
  const RebalanceQuestion rebalance{
      .load = question.load,
      .num_steps = static_cast<double>(question.last_step - question.first_step) + 1,
      .incumbent = question.incumbent,
      .candidate = affordable.target,
      .min_gain = question.min_gain,
      .steps_to_next = static_cast<double>(question.every_steps),
      .costs = costs,
      .record = question.record == nullptr ? none : *question.record};
  EPLB_ASSIGN_OR_RETURN(const RebalanceVerdict judged, JudgeRebalance(rebalance));
  if (affordable.num_layers == 0) {
    verdict.reason =
        absl::StrCat(Steps(question), ": kept, the policy changes nothing it may move");
  } else {
    EPLB_RETURN_IF_ERROR(Settle(question, affordable, judged, verdict));
  }
  if (verdict.chunks.empty() && costs.priced() && rebalance.record.start().has_value()) {
    EPLB_RETURN_IF_ERROR(ConsiderReturn(question, rebalance, verdict));
  }
  return verdict;
}

void WatchWindow(const State& state, Job& job) {
  if (!job.known || !job.known->placement || !job.current) return;
  const Costs costs = CostsOf(state, *job.current);
  const Placement& incumbent = *job.known->placement;
  if (!costs.priced() || !(incumbent.topology() == job.current->topology)) return;
  const Window& window = job.windows.complete.back();
  const int64_t num_steps = window.last_step - window.first_step + 1;
  // Shapes were checked when the window was added and when the placement was adopted.
  if (!job.record.Observe(*window.load, num_steps, incumbent).ok()) return;
  const double replicas =
      ReplicaSecondsPerStep(incumbent, costs) - ReplicaSecondsPerStep(*job.record.start(), costs);
  job.record.Spend(replicas * static_cast<double>(num_steps));
}

void MaybeSolve(Turn& turn, Job& job) {
  if (!IsDue(turn.state, job)) return;
  const Config& config = turn.state.config;
  const int64_t step = job.windows.complete.back().last_step;
  const int64_t after_step = job.last_decision_step.value_or(-1);
  job.last_decision_step = step;
  if (job.back_off.to_skip > 0) {
    --job.back_off.to_skip;
    RecordEvent(turn, job, "kept", job.known->version,
                absl::StrCat("step ", step, ": kept, backing off after a proposal that did not ",
                             "commit; ", CountText(job.back_off.to_skip, "more decision"),
                             " will be skipped"));
    return;
  }
  const int32_t report_every = job.current->report_every;
  const int32_t num_windows =
      std::max(1, config.policy_every_steps / report_every +
                      (config.policy_every_steps % report_every == 0 ? 0 : 1));
  absl::StatusOr<Window> estimate = SumSince(job.windows, after_step, num_windows);
  if (!estimate.ok()) {
    RecordEvent(turn, job, "kept", job.known->version,
                absl::StrCat("step ", step, ": kept, ", estimate.status().ToString()));
    return;
  }
  job.solving = {++turn.state.last_solve_id, estimate->load, estimate->first_step,
                 estimate->last_step};
  SetPhase(turn, job, Phase::kSolving);
  turn.decision.effects.emplace_back(Solve{.job = job.name,
                                           .solve_id = job.solving.id,
                                           .policy_name = config.policy_name,
                                           .load = estimate->load,
                                           .previous = job.known->placement});
  turn.decision.reason = absl::StrCat("steps ", estimate->first_step, "..", estimate->last_step,
                                      ": asking policy ", config.policy_name);
}

void HandleSolved(Turn& turn, const Solved& solved) {
  const auto found = turn.state.jobs.find(solved.job);
  if (found == turn.state.jobs.end()) return;
  Job& job = found->second;
  if (job.phase != Phase::kSolving || solved.solve_id != job.solving.id) return;
  absl::StatusOr<Verdict> verdict = JudgeSolution(turn.state, job, solved);
  if (!verdict.ok()) {
    AbandonSolve(turn, job,
                 absl::StrCat("kept, policy ", turn.state.config.policy_name,
                              " failed: ", verdict.status().ToString()));
    return;
  }
  if (!verdict->left_out.empty()) {
    RecordEvent(turn, job, "left_out", job.known->version, verdict->left_out);
  }
  if (verdict->chunks.empty()) {
    if (CostsOf(turn.state, *job.current).priced()) {
      job.record.BeginTrial(*solved.placement, *job.known->placement);
    }
    AbandonSolve(turn, job, verdict->reason);
    return;
  }
  if (job.current->num_connected < job.current->world_size()) {
    AbandonSolve(turn, job, "kept, not every rank is connected");
    return;
  }
  job.record.Spend(verdict->migration_seconds);
  job.chunks.decided_first_step = job.solving.first_step;
  job.chunks.decided_last_step = job.solving.last_step;
  job.solving = {};
  job.chunks.total = static_cast<int32_t>(verdict->chunks.size());
  job.chunks.reason = verdict->reason;
  job.chunks.rest.assign(std::make_move_iterator(verdict->chunks.begin()),
                         std::make_move_iterator(verdict->chunks.end()));
  ProposeNextChunk(turn, job);
}

void AbandonSolve(Turn& turn, Job& job, const std::string& reason) {
  job.solving = {};
  SetPhase(turn, job, Phase::kIdle);
  RecordEvent(turn, job, "kept", job.known->version, reason);
}

}  // namespace eplb::core
