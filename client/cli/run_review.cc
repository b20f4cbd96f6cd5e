#include "client/cli/run_review.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "absl/strings/str_cat.h"

#include "placement/evaluate.h"
#include "placement/registry.h"
#include "placement/replay/run_figures.h"
#include "placement/status_macros.h"

namespace eplb::cli {
namespace {

std::vector<RunPlacement> RunPlacementsOf(const std::vector<LoggedPlacement>& placements) {
  std::vector<RunPlacement> result;
  result.reserve(placements.size());
  for (const LoggedPlacement& placement : placements) {
    result.push_back({placement.step, placement.decided_first_step, placement.decided_last_step,
                      placement.placement});
  }
  return result;
}

// What the run's own report claims, against the figures computed again.
void CheckReport(const RunDirectory& run, const RunFigures& figures, RunReview& review) {
  const std::vector<StepRecord>& steps = run.report.steps;
  if (!run.report.error.empty())
    review.problems.push_back(absl::StrCat("the run ended early: ", run.report.error));
  if (steps.size() != figures.run.size()) {
    review.problems.push_back(absl::StrCat("run.json has ", steps.size(),
                                           " steps, loads.jsonl has ", figures.run.size()));
  }
  if (static_cast<int64_t>(steps.size()) != run.report.steps_asked) {
    review.problems.push_back(absl::StrCat("the run has ", steps.size(), " steps, ",
                                           run.report.steps_asked, " were asked for"));
  }
  for (size_t i = 0; i < std::min(steps.size(), figures.run.size()); ++i) {
    const double difference = std::max(std::abs(steps[i].balancedness - figures.run[i]),
                                       std::abs(steps[i].balancedness_static - figures.unmoved[i]));
    if (difference > kBalancednessTolerance &&
        review.largest_difference <= kBalancednessTolerance) {
      review.problems.push_back(absl::StrCat("step ", i, ": reported balancedness ",
                                             steps[i].balancedness, " differs from the recomputed ",
                                             figures.run[i]));
    }
    review.largest_difference = std::max(review.largest_difference, difference);
  }
  for (const SwitchRecord& change : run.report.switches) {
    if (change.bytes_verified > 0) continue;
    review.problems.push_back(
        absl::StrCat("no byte was verified after the switch to version ", change.version));
  }
  if (run.report.bytes_verified <= 0)
    review.problems.push_back("no byte of expert memory was verified");
}

// A log that was cut off could hide what it no longer says.
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
  for (int64_t step = 0; step < static_cast<int64_t>(run.step_loads.size()); ++step) {
    while (current + 1 < run.placements.size() && run.placements[current + 1].step <= step)
      ++current;
    if (step < first) continue;
    const Load& load = run.step_loads[static_cast<size_t>(step)];
    EPLB_ASSIGN_OR_RETURN(const Evaluation before, Evaluate(load, unmoved));
    EPLB_ASSIGN_OR_RETURN(const Evaluation after,
                          Evaluate(load, run.placements[current].placement));
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

double MeanStepSeconds(const std::vector<StepRecord>& steps) {
  double sum = 0;
  for (const StepRecord& step : steps) sum += step.seconds;
  return steps.empty() ? 0 : sum / static_cast<double>(steps.size());
}

}  // namespace

absl::StatusOr<RunReview> ReviewRun(const RunDirectory& run, int64_t window_steps) {
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakePolicy("deepseek", {}));
  const std::vector<RunPlacement> placements = RunPlacementsOf(run.placements);
  EPLB_ASSIGN_OR_RETURN(const RunFigures figures,
                        EvaluateRun(run.step_loads, placements, *policy, window_steps));
  RunReview review;
  review.problems = FindViolations(run.histories, RecordsOf(run.placements));
  review.steps = static_cast<int64_t>(figures.run.size());
  review.rebalances = CountRebalances(run.report.switches);
  review.first_switch_step = figures.first_switch_step;
  review.window_steps = window_steps;
  const int64_t first = std::max<int64_t>(figures.first_switch_step, 0);
  review.run = MeanFrom(figures.run, first);
  review.unmoved = MeanFrom(figures.unmoved, first);
  review.policy = MeanFrom(figures.policy, first);
  review.hindsight = MeanFrom(figures.hindsight, first);
  CheckReport(run, figures, review);
  CheckLogsAreWhole(run, review);
  EPLB_RETURN_IF_ERROR(SumGpuLoads(run, first, review));
  review.step_seconds = MeanStepSeconds(run.report.steps);
  return review;
}

}  // namespace eplb::cli
