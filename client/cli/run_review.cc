#include "client/cli/run_review.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/text.h"
#include "placement/policies/registry.h"
#include "placement/replay/run_figures.h"
#include "placement/split/batch_split.h"
#include "placement/traffic.h"
#include "proto/wire/messages.h"

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
                 const RunSeries& computed, v1::RunReview& review) {
  const std::optional<double>& figure = computed.balancedness[step];
  const double difference = DifferenceOf(reported, figure);
  v1::RunBalancedness& all = *review.mutable_balancedness();
  const double largest = all.largest_difference_to_reported();
  if (difference > kBalancednessTolerance && largest <= kBalancednessTolerance) {
    review.add_problems(absl::StrCat("step ", step, ": reported ", name, " ",
                                     FigureText(reported, 6), " differs from the recomputed ",
                                     FigureText(figure, 6)));
  }
  all.set_largest_difference_to_reported(std::max(largest, difference));
}

// Compares the tokens of the fullest GPUs of all steps. Older trainers report none.
void ComparePeaks(const char* name, const std::vector<StepRecord>& steps,
                  std::optional<double> StepRecord::*peak, const RunSeries& computed,
                  v1::RunReview& review) {
  double reported = 0;
  for (const StepRecord& step : steps) {
    if (!(step.*peak)) return;
    reported += *(step.*peak);
  }
  if (std::abs(reported - computed.peak_tokens) <= kBalancednessTolerance * computed.peak_tokens) {
    return;
  }
  review.add_problems(absl::StrCat("reported ", name, " of all steps ", reported,
                                   " differs from the recomputed ", computed.peak_tokens));
}

// Compares the run's own report with the figures computed again.
void CheckReport(const RunDirectory& run, const RunFigures& figures, v1::RunReview& review) {
  const std::vector<StepRecord>& steps = run.report.steps;
  if (!run.report.error.empty())
    review.add_problems(absl::StrCat("the run ended early: ", run.report.error));
  if (steps.size() != figures.run.balancedness.size()) {
    review.add_problems(absl::StrCat("run.json has ", steps.size(), " steps, loads.jsonl has ",
                                     figures.run.balancedness.size()));
  }
  if (std::ssize(steps) != run.report.steps_asked) {
    review.add_problems(absl::StrCat("the run has ", steps.size(), " steps, ",
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
    review.add_problems(
        absl::StrCat("no byte was verified after the switch to version ", change.version));
  }
  if (run.report.bytes_verified <= 0) review.add_problems("no byte of expert memory was verified");
}

// A log that was cut off could hide a problem.
void CheckLogsAreWhole(const RunDirectory& run, v1::RunReview& review) {
  for (const RankHistory& history : run.histories) {
    const bool stopped = history.records.back().kind == HistoryRecord::Kind::kStop;
    if (stopped && history.records.back().step + 1 == review.steps()) continue;
    review.add_problems(absl::StrCat("rank ", history.rank.value,
                                     "'s log does not end with a stop after step ",
                                     review.steps() - 1));
  }
}

// Fills the worst layer and its GPU loads over the steps from `first` on.
absl::Status SumGpuLoads(const RunDirectory& run, int64_t first, v1::RunGpuLoads& out) {
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
    out.set_layer(layer);
  }
  const auto before = static_loads.row(out.layer());
  const auto after = run_loads.row(out.layer());
  out.mutable_static_()->Assign(before.begin(), before.end());
  out.mutable_run()->Assign(after.begin(), after.end());
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

v1::RunTime TimeOf(const RunReport& report, const RunSeries& run) {
  v1::RunTime time;
  time.set_modelled(report.even_step_seconds > 0);
  for (size_t i = 0; i < std::min(report.steps.size(), run.slowdown.size()); ++i) {
    const StepRecord& step = report.steps[i];
    time.set_measured_seconds(time.measured_seconds() + step.seconds);
    time.set_boundary_seconds(time.boundary_seconds() + step.boundary_seconds);
    const double expected = report.even_step_seconds * run.slowdown[i].value_or(1);
    if (time.modelled() && step.work_seconds > expected) {
      time.set_steps_over_model(time.steps_over_model() + 1);
    }
  }
  for (const SwitchRecord& change : report.switches) {
    const auto step = std::ranges::find(report.steps, change.step, &StepRecord::step);
    if (step != report.steps.end()) {
      time.set_switch_seconds(time.switch_seconds() + step->boundary_seconds);
    }
    time.set_pause_seconds(time.pause_seconds() + change.pause_seconds);
    time.set_longest_pause_seconds(std::max(time.longest_pause_seconds(), change.pause_seconds));
  }
  return time;
}

int64_t BytesMoved(const std::vector<SwitchRecord>& switches) {
  int64_t bytes = 0;
  for (const SwitchRecord& change : switches) bytes += change.bytes_moved;
  return bytes;
}

// The row of `series`; `run` is the run's own, which tells what a step took and a transfer weighs.
v1::RunRow RowOf(const std::string& name, const RunReport& report, const RunSeries& run,
                 const RunSeries& series, const std::vector<bool>& compared) {
  v1::RunRow row;
  row.set_name(name);
  row.set_peak_tokens(series.peak_tokens);
  row.set_transfers(series.transfers);
  if (const auto mean = MeanOf(series.balancedness, compared)) row.set_balancedness(*mean);
  if (const auto mean = MeanOf(series.slowdown, compared)) row.set_slowdown(*mean);
  if (run.transfers > 0) {
    const double bytes = static_cast<double>(BytesMoved(report.switches));
    row.set_bytes_moved(std::llround(bytes / static_cast<double>(run.transfers) *
                                     static_cast<double>(series.transfers)));
  }
  const bool is_run = &series == &run;
  if (report.even_step_seconds <= 0 && !is_run) return row;
  std::vector<std::optional<double>> seconds;
  double total = 0;
  for (size_t i = 0; i < std::min(report.steps.size(), run.slowdown.size()); ++i) {
    const StepRecord& step = report.steps[i];
    // Without tokens this trainer's step lasts as an even one.
    seconds.emplace_back(is_run
                             ? step.seconds - step.boundary_seconds
                             : PartsOf(step, report.even_step_seconds, run.slowdown[i].value_or(1))
                                   .SecondsAt(series.slowdown[i].value_or(1)));
    total += *seconds.back();
  }
  if (total > 0) row.set_total_seconds(total);
  if (const auto mean = MeanOf(seconds, compared)) row.set_step_seconds(*mean);
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

std::string FormulaOf(const v1::RunReview& review) {
  return absl::StrCat(
      "mean(gpu load)/max(gpu load), mean over layers and steps from the first switch on",
      review.comparison().has_equal_shares_predicted()
          ? ", run and split_hindsight with an exact split of each step, the others in equal shares"
          : "",
      LeavesStepsOut(review) ? ", without the steps in operators.held_back" : "");
}

void CompareFigures(const RunReport& report, const RunFigures& figures,
                    const std::vector<bool>& decided, v1::RunReview& review) {
  const int64_t first = std::max<int64_t>(figures.first_switch_step, 0);
  const std::vector<bool> compared = ComparedSteps(decided, figures.run.balancedness.size(), first);
  v1::RunBalancedness& all = *review.mutable_balancedness();
  v1::RunComparison& rows = *review.mutable_comparison();
  rows.set_first_step(first);
  rows.set_steps(std::ranges::count(compared, true));
  const auto fill = [&](const std::string& name, const RunSeries& series, v1::RunRow* row,
                        void (v1::RunBalancedness::*set)(double)) {
    *row = RowOf(name, report, figures.run, series, compared);
    if (row->has_balancedness()) (all.*set)(row->balancedness());
  };
  const std::string hindsight =
      absl::StrCat("hindsight, ", all.hindsight_window_steps(), " steps each");
  using All = v1::RunBalancedness;
  fill("this run", figures.run, rows.mutable_run(), &All::set_run);
  fill("without EPLB", figures.without_eplb, rows.mutable_without_eplb_predicted(),
       &All::set_without_eplb);
  fill("static layout", figures.unmoved, rows.mutable_static_predicted(), &All::set_static_);
  fill("policy deepseek, same times", figures.policy,
       rows.mutable_deepseek_same_windows_predicted(), &All::set_deepseek_same_windows);
  fill(hindsight, figures.hindsight, rows.mutable_deepseek_hindsight_predicted(),
       &All::set_deepseek_hindsight);
  if (report.split == SplitMode::kBatch) {
    fill("equal shares, same placements", figures.equal_shares,
         rows.mutable_equal_shares_predicted(), &All::set_equal_shares);
    fill(hindsight, figures.hindsight_split, rows.mutable_split_hindsight_predicted(),
         &All::set_split_hindsight);
  }
  const double without = rows.without_eplb_predicted().peak_tokens();
  if (without > 0) review.set_time_saved(1 - rows.run().peak_tokens() / without);
  *review.mutable_time() = TimeOf(report, figures.run);
  all.set_formula(FormulaOf(review));
}

auto PlacedAt(const RunDirectory& run, int64_t version) {
  return std::ranges::find(run.placements, version, &LoggedPlacement::version);
}

// When the daemon proposed it, if events.json has that; otherwise 0.
int64_t DecidedAt(const RunDirectory& run, const std::string& reason) {
  if (!run.events) return 0;
  for (const LoggedEvent& event : run.events->events) {
    if (event.name == "proposed" && event.reason == reason) return event.unix_micros;
  }
  return 0;
}

// A decision without the figures that are measured.
absl::StatusOr<v1::RunDecision> DecisionOf(const RunDirectory& run,
                                           const std::vector<SwitchRecord>& chunks) {
  const SwitchRecord& change = chunks.front();
  const auto first = PlacedAt(run, change.version);
  const auto last = PlacedAt(run, chunks.back().version);
  v1::RunDecision decision;
  v1::Plan& plan = *decision.mutable_plan();
  plan.set_plan(change.decision);
  plan.set_unix_micros(DecidedAt(run, change.reason));
  plan.set_policy(change.policy);
  plan.set_result(v1::PLAN_RESULT_COMMITTED);
  plan.set_base_version(std::prev(first)->version);
  plan.set_first_version(first->version);
  plan.set_last_version(last->version);
  if (change.decided_first_step <= change.decided_last_step) {
    plan.set_decided_first_step(change.decided_first_step);
    plan.set_decided_last_step(change.decided_last_step);
  }
  EPLB_ASSIGN_OR_RETURN(const Flows flows,
                        FlowsBetween(std::prev(first)->placement, last->placement));
  plan.set_transfers(flows.transfers);
  plan.set_received_bytes(BytesMoved(chunks));
  plan.set_num_chunks(static_cast<uint32_t>(chunks.size()));
  plan.set_chunks_committed(plan.num_chunks());
  plan.set_switched_step(chunks.back().step);
  plan.set_reason(change.reason);
  plan.set_asked_by(change.asked_by);
  plan.set_split(wire::SplitName(run.report.split));
  for (const SwitchRecord& chunk : chunks) {
    decision.add_switch_steps(chunk.step);
    plan.set_pause_seconds(std::max(plan.pause_seconds(), chunk.pause_seconds));
  }
  return decision;
}

// placements: those of run.placements. errors: InvalidArgument if steps are outside the run.
absl::Status ReviewDecisions(const RunDirectory& run, const std::vector<RunPlacement>& placements,
                             v1::RunReview& review) {
  const std::vector<std::vector<SwitchRecord>> chunks = ByDecision(run.report.switches);
  const bool numbered =
      std::ranges::all_of(chunks, [](const auto& one) { return one.front().decision > 0; });
  const auto measure = [&run](std::span<const RunPlacement> ran, int64_t first, int64_t last) {
    return MeasuredBalancedness(run.step_loads, ran, {first, last}, run.report.split);
  };
  for (size_t i = 0; i < chunks.size(); ++i) {
    const SwitchRecord& change = chunks[i].front();
    EPLB_ASSIGN_OR_RETURN(v1::RunDecision decision, DecisionOf(run, chunks[i]));
    v1::Plan& plan = *decision.mutable_plan();
    if (!numbered) plan.set_plan(i + 1);
    EPLB_ASSIGN_OR_RETURN(const std::optional<double> before,
                          measure(placements, change.decided_first_step, change.decided_last_step));
    if (before) plan.set_balancedness_before(*before);
    const RunPlacement always{.step = 0,
                              .placement = PlacedAt(run, chunks[i].back().version)->placement};
    EPLB_ASSIGN_OR_RETURN(
        const std::optional<double> computed,
        measure({&always, 1}, change.decided_first_step, change.decided_last_step));
    if (computed) decision.set_balancedness_computed(*computed);
    const int64_t first = chunks[i].back().step + 1;
    const int64_t last =
        i + 1 < chunks.size() ? chunks[i + 1].front().step : std::ssize(run.step_loads) - 1;
    decision.set_until_next_first_step(first);
    decision.set_until_next_last_step(last);
    if (first <= last) {
      EPLB_ASSIGN_OR_RETURN(const std::optional<double> seen, measure(placements, first, last));
      if (seen) decision.set_balancedness_until_next(*seen);
    }
    *review.add_decisions() = std::move(decision);
  }
  return absl::OkStatus();
}

}  // namespace

bool LeavesStepsOut(const v1::RunReview& review) {
  return review.comparison().steps() < review.steps() - review.comparison().first_step();
}

absl::StatusOr<v1::RunReview> ReviewRun(const RunDirectory& run, int64_t window_steps) {
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
  v1::RunReview review;
  review.set_format("eplb.report.v1");
  review.set_job(run.report.job);
  review.set_run_id(run.report.run_id);
  review.set_ranks(std::ssize(run.histories));
  review.set_steps(std::ssize(figures.run.balancedness));
  review.set_split(wire::SplitName(run.report.split));
  review.set_rebalances(CountRebalances(run.report.switches));
  review.set_first_switch_step(figures.first_switch_step);
  review.set_bytes_verified(run.report.bytes_verified);
  review.mutable_balancedness()->set_hindsight_window_steps(window_steps);
  for (std::string& problem : FindViolations(run.histories, RecordsOf(run.placements))) {
    review.add_problems(std::move(problem));
  }
  OperatorReview operators = ReviewOperators(run.report, run.events);
  if (run.events) *review.mutable_operators() = std::move(operators.changes);
  CompareFigures(run.report, figures, operators.decided, review);
  CheckReport(run, figures, review);
  CheckLogsAreWhole(run, review);
  EPLB_RETURN_IF_ERROR(
      SumGpuLoads(run, review.comparison().first_step(), *review.mutable_gpu_loads()));
  EPLB_RETURN_IF_ERROR(ReviewDecisions(run, placements, review));
  return review;
}

}  // namespace eplb::cli
