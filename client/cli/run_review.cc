#include "client/cli/run_review.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/text.h"
#include "placement/policies/registry.h"
#include "placement/replay/run_figures.h"
#include "placement/split/batch_split.h"

namespace eplb::cli {
namespace {

std::vector<RunPlacement> RunPlacementsOf(const std::vector<LoggedPlacement>& placements) {
  std::vector<RunPlacement> result;
  result.reserve(placements.size());
  for (const LoggedPlacement& placement : placements) {
    // An operator named the placement of a rollback: no policy would have.
    const bool decided = placement.policy != kRollbackPolicy;
    result.push_back({placement.step, decided ? placement.decided_first_step : 0,
                      decided ? placement.decided_last_step : -1, placement.placement});
  }
  return result;
}

// 0 for a step without tokens, which has no figure to compare. 1 if the report lacks the figure.
double DifferenceOf(const std::optional<double>& reported, const std::optional<double>& computed) {
  if (!computed) return 0;
  return reported ? std::abs(*reported - *computed) : 1;
}

// Compares a reported balancedness of one step with the computed one, and keeps the first problem.
void CompareStep(size_t step, const char* name, const std::optional<double>& reported,
                 const RunSeries& computed, RunReview& review) {
  const std::optional<double>& figure = computed.balancedness[step];
  const double difference = DifferenceOf(reported, figure);
  if (difference > kBalancednessTolerance && review.largest_difference <= kBalancednessTolerance) {
    review.problems.push_back(absl::StrCat("step ", step, ": reported ", name, " ",
                                           FigureText(reported, 6), " differs from the recomputed ",
                                           FigureText(figure, 6)));
  }
  review.largest_difference = std::max(review.largest_difference, difference);
}

// Compares the tokens of the fullest GPUs of all steps. Older trainers report none.
void ComparePeaks(const char* name, const std::vector<StepRecord>& steps,
                  std::optional<double> StepRecord::*peak, const RunSeries& computed,
                  RunReview& review) {
  double reported = 0;
  for (const StepRecord& step : steps) {
    if (!(step.*peak)) return;
    reported += *(step.*peak);
  }
  if (std::abs(reported - computed.peak_tokens) <= kBalancednessTolerance * computed.peak_tokens) {
    return;
  }
  review.problems.push_back(absl::StrCat("reported ", name, " of all steps ", reported,
                                         " differs from the recomputed ", computed.peak_tokens));
}

// Compares the run's own report with the figures computed again.
void CheckReport(const RunDirectory& run, const RunFigures& figures, RunReview& review) {
  const std::vector<StepRecord>& steps = run.report.steps;
  if (!run.report.error.empty())
    review.problems.push_back(absl::StrCat("the run ended early: ", run.report.error));
  if (steps.size() != figures.run.balancedness.size()) {
    review.problems.push_back(absl::StrCat("run.json has ", steps.size(),
                                           " steps, loads.jsonl has ",
                                           figures.run.balancedness.size()));
  }
  if (std::ssize(steps) != run.report.steps_asked) {
    review.problems.push_back(absl::StrCat("the run has ", steps.size(), " steps, ",
                                           run.report.steps_asked, " were asked for"));
  }
  for (size_t i = 0; i < std::min(steps.size(), figures.run.balancedness.size()); ++i) {
    CompareStep(i, "balancedness", steps[i].balancedness, figures.run, review);
    CompareStep(i, "balancedness_static", steps[i].balancedness_static, figures.unmoved, review);
    if (!steps[i].balancedness_without_eplb) continue;  // absent in the log of an older trainer
    CompareStep(i, "balancedness_without_eplb", steps[i].balancedness_without_eplb,
                figures.without_eplb, review);
  }
  ComparePeaks("peak_tokens", steps, &StepRecord::peak_tokens, figures.run, review);
  ComparePeaks("peak_tokens_without_eplb", steps, &StepRecord::peak_tokens_without_eplb,
               figures.without_eplb, review);
  for (const SwitchRecord& change : run.report.switches) {
    if (change.bytes_verified > 0) continue;
    review.problems.push_back(
        absl::StrCat("no byte was verified after the switch to version ", change.version));
  }
  if (run.report.bytes_verified <= 0)
    review.problems.push_back("no byte of expert memory was verified");
}

// A log that was cut off could hide a problem.
void CheckLogsAreWhole(const RunDirectory& run, RunReview& review) {
  for (const RankHistory& history : run.histories) {
    const bool stopped = history.records.back().kind == HistoryRecord::Kind::kStop;
    if (stopped && history.records.back().step + 1 == review.steps) continue;
    review.problems.push_back(absl::StrCat("rank ", history.rank.value,
                                           "'s log does not end with a stop after step ",
                                           review.steps - 1));
  }
}

// Fills the worst layer and its GPU loads over the steps from `first` on.
absl::Status SumGpuLoads(const RunDirectory& run, int64_t first, RunReview& review) {
  const Topology& topology = run.placements.front().placement.topology();
  const Placement unmoved = Placement::Static(topology);
  RealMatrix static_loads = RealMatrix::Zero(topology.num_layers(), topology.num_gpus());
  RealMatrix run_loads = static_loads;
  size_t current = 0;
  for (int64_t step = 0; step < std::ssize(run.step_loads); ++step) {
    while (current + 1 < run.placements.size() && run.placements[current + 1].step <= step)
      ++current;
    if (step < first) continue;
    const Load& load = run.step_loads[static_cast<size_t>(step)];
    EPLB_ASSIGN_OR_RETURN(const Evaluation before, Evaluate(load, unmoved));
    EPLB_ASSIGN_OR_RETURN(const Evaluation after,
                          EvaluateSplit(load, run.placements[current].placement, run.report.split));
    static_loads += before.gpu_loads;
    run_loads += after.gpu_loads;
  }
  double worst = 0;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    const double mean = static_loads.row(layer).mean();
    const double skew = mean > 0 ? static_loads.row(layer).maxCoeff() / mean : 0;
    if (skew <= worst) continue;
    worst = skew;
    review.worst_layer = layer;
  }
  const auto before = static_loads.row(review.worst_layer);
  const auto after = run_loads.row(review.worst_layer);
  review.gpu_loads_unmoved.assign(before.begin(), before.end());
  review.gpu_loads_run.assign(after.begin(), after.end());
  return absl::OkStatus();
}

// A step without its boundary: until its expected end, and what came after.
struct StepParts {
  double work = 0;  // before it waited for its expected end
  double even = 0;  // expected, had the GPUs equal loads; 0: it expected none
  double tail = 0;  // after it

  // Under a placement with this slowdown. What was done before the wait takes its time anyway.
  double SecondsAt(double slowdown) const { return std::max(work, even * slowdown) + tail; }
};

StepParts PartsOf(const StepRecord& step, double even_seconds, double slowdown) {
  const double expected = std::max(step.work_seconds, even_seconds * slowdown);
  return {.work = step.work_seconds,
          .even = even_seconds,
          .tail = std::max(0.0, step.seconds - step.boundary_seconds - expected)};
}

RunTime TimeOf(const RunReport& report, const RunSeries& run) {
  RunTime time{.modelled = report.even_step_seconds > 0};
  for (size_t i = 0; i < std::min(report.steps.size(), run.slowdown.size()); ++i) {
    const StepRecord& step = report.steps[i];
    time.measured_seconds += step.seconds;
    time.boundary_seconds += step.boundary_seconds;
    const double expected = report.even_step_seconds * run.slowdown[i].value_or(1);
    if (time.modelled && step.work_seconds > expected) ++time.steps_over_model;
  }
  for (const SwitchRecord& change : report.switches) {
    const auto step = std::ranges::find(report.steps, change.step, &StepRecord::step);
    if (step != report.steps.end()) time.switch_seconds += step->boundary_seconds;
    time.longest_pause_seconds = std::max(time.longest_pause_seconds, change.pause_seconds);
  }
  return time;
}

int64_t BytesMoved(const std::vector<SwitchRecord>& switches) {
  int64_t bytes = 0;
  for (const SwitchRecord& change : switches) bytes += change.bytes_moved;
  return bytes;
}

// The row of `series`; `run` is the run's own, which tells what a step took and a transfer weighs.
RunRow RowOf(const RunReport& report, const RunSeries& run, const RunSeries& series,
             const std::vector<bool>& compared) {
  RunRow row{.peak_tokens = series.peak_tokens,
             .balancedness = MeanOf(series.balancedness, compared),
             .slowdown = MeanOf(series.slowdown, compared),
             .transfers = series.transfers,
             .bytes = {}};
  if (run.transfers > 0) {
    const double bytes = static_cast<double>(BytesMoved(report.switches));
    row.bytes = std::llround(bytes / static_cast<double>(run.transfers) *
                             static_cast<double>(series.transfers));
  }
  const bool is_run = &series == &run;
  if (report.even_step_seconds <= 0 && !is_run) return row;
  std::vector<std::optional<double>> seconds;
  for (size_t i = 0; i < std::min(report.steps.size(), run.slowdown.size()); ++i) {
    const StepRecord& step = report.steps[i];
    // Without tokens this trainer's step lasts as an even one.
    seconds.emplace_back(is_run
                             ? step.seconds - step.boundary_seconds
                             : PartsOf(step, report.even_step_seconds, run.slowdown[i].value_or(1))
                                   .SecondsAt(series.slowdown[i].value_or(1)));
    row.total_seconds += *seconds.back();
  }
  row.step_seconds = MeanOf(seconds, compared).value_or(0);
  return row;
}

// The steps that rows are compared over: from `first` on, but for those held back. All from `first`
// on when nothing else is left.
std::vector<bool> ComparedSteps(const std::vector<bool>& decided, size_t num_steps, int64_t first) {
  std::vector<bool> from_first(num_steps, false);
  std::fill(from_first.begin() + std::min(first, static_cast<int64_t>(num_steps)), from_first.end(),
            true);
  std::vector<bool> compared = from_first;
  for (size_t i = 0; i < std::min(num_steps, decided.size()); ++i) {
    if (!decided[i]) compared[i] = false;
  }
  const bool any = std::ranges::find(compared, true) != compared.end();
  return any ? compared : from_first;
}

void CompareFigures(const RunReport& report, const RunFigures& figures, RunReview& review) {
  const int64_t first = std::max<int64_t>(figures.first_switch_step, 0);
  const std::vector<bool> compared =
      ComparedSteps(review.operators.decided, figures.run.balancedness.size(), first);
  review.compared_first_step = first;
  review.compared_steps = std::ranges::count(compared, true);
  review.run = RowOf(report, figures.run, figures.run, compared);
  review.without_eplb = RowOf(report, figures.run, figures.without_eplb, compared);
  review.unmoved = RowOf(report, figures.run, figures.unmoved, compared);
  review.policy = RowOf(report, figures.run, figures.policy, compared);
  review.hindsight = RowOf(report, figures.run, figures.hindsight, compared);
  if (report.split == SplitMode::kBatch) {
    review.equal_shares = RowOf(report, figures.run, figures.equal_shares, compared);
    review.hindsight_split = RowOf(report, figures.run, figures.hindsight_split, compared);
  }
  review.time = TimeOf(report, figures.run);
}

absl::StatusOr<const Placement*> PlacementOf(const RunDirectory& run, int64_t version) {
  const auto found = std::ranges::find(run.placements, version, &LoggedPlacement::version);
  if (found != run.placements.end()) return &found->placement;
  return InvalidInput("run.json switched to version ", version,
                      ", placements.jsonl has none of it");
}

RunDecision DecisionOf(const std::vector<SwitchRecord>& chunks) {
  const SwitchRecord& first = chunks.front();
  RunDecision result{.decision = first.decision,
                     .policy = first.policy,
                     .asked_by = first.asked_by,
                     .reason = first.reason,
                     .decided_first_step = first.decided_first_step,
                     .decided_last_step = first.decided_last_step};
  for (const SwitchRecord& chunk : chunks) {
    result.switch_steps.push_back(chunk.step);
    result.bytes_moved += chunk.bytes_moved;
    result.pause_seconds = std::max(result.pause_seconds, chunk.pause_seconds);
  }
  return result;
}

// placements: those of run.placements. errors: InvalidArgument if a switch has no placement in
// placements.jsonl, or steps lie outside the run.
absl::StatusOr<std::vector<RunDecision>> ReviewDecisions(
    const RunDirectory& run, const std::vector<RunPlacement>& placements) {
  const std::vector<std::vector<SwitchRecord>> chunks = ByDecision(run.report.switches);
  const auto num_steps = std::ssize(run.step_loads);
  const SplitMode split = run.report.split;
  std::vector<RunDecision> decisions;
  for (size_t i = 0; i < chunks.size(); ++i) {
    RunDecision decision = DecisionOf(chunks[i]);
    EPLB_ASSIGN_OR_RETURN(const Placement* const target,
                          PlacementOf(run, chunks[i].back().version));
    const int64_t first = decision.decided_first_step;
    const int64_t last = decision.decided_last_step;
    EPLB_ASSIGN_OR_RETURN(decision.before,
                          MeasuredBalancedness(run.step_loads, placements, {first, last}, split));
    const RunPlacement always{.step = 0, .placement = *target};
    EPLB_ASSIGN_OR_RETURN(decision.computed,
                          MeasuredBalancedness(run.step_loads, {&always, 1}, {first, last}, split));
    decision.until_next_first_step = decision.switch_steps.back() + 1;
    decision.until_next_last_step =
        i + 1 < chunks.size() ? chunks[i + 1].front().step : num_steps - 1;
    if (decision.until_next_first_step <= decision.until_next_last_step) {
      EPLB_ASSIGN_OR_RETURN(
          decision.until_next,
          MeasuredBalancedness(run.step_loads, placements,
                               {decision.until_next_first_step, decision.until_next_last_step},
                               split));
    }
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

}  // namespace

absl::StatusOr<RunReview> ReviewRun(const RunDirectory& run, int64_t window_steps) {
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakePolicy(kReferencePolicyName, {}));
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> split_policy,
                        MakePolicy(kSplitPolicyName, {.effort = Effort::kThorough}));
  const std::vector<RunPlacement> placements = RunPlacementsOf(run.placements);
  EPLB_ASSIGN_OR_RETURN(const RunFigures figures,
                        EvaluateRun(run.step_loads, placements,
                                    {.policy = *policy,
                                     .window_steps = window_steps,
                                     .split = run.report.split,
                                     .hindsight_split = split_policy.get()}));
  RunReview review;
  review.split = run.report.split;
  review.problems = FindViolations(run.histories, RecordsOf(run.placements));
  review.steps = std::ssize(figures.run.balancedness);
  review.rebalances = CountRebalances(run.report.switches);
  review.first_switch_step = figures.first_switch_step;
  review.window_steps = window_steps;
  review.operators = ReviewOperators(run.report, run.events);
  CompareFigures(run.report, figures, review);
  CheckReport(run, figures, review);
  CheckLogsAreWhole(run, review);
  EPLB_RETURN_IF_ERROR(SumGpuLoads(run, review.compared_first_step, review));
  EPLB_ASSIGN_OR_RETURN(review.decisions, ReviewDecisions(run, placements));
  return review;
}

}  // namespace eplb::cli
