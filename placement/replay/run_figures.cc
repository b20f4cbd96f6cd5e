#include "placement/replay/run_figures.h"

#include <algorithm>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/align.h"
#include "placement/figure_mean.h"
#include "placement/migration_plan.h"
#include "placement/split/batch_split.h"
#include "placement/without_eplb.h"

namespace eplb {
namespace {

absl::Status CheckOrder(std::span<const RunPlacement> placements, int64_t num_steps) {
  if (placements.empty() || placements.front().step != 0) {
    return InvalidInput("a run's first placement begins at step 0");
  }
  for (size_t i = 1; i < placements.size(); ++i) {
    if (placements[i].step <= placements[i - 1].step) {
      return InvalidInput("placement ", i, " begins at step ", placements[i].step,
                          ", not after step ", placements[i - 1].step);
    }
    if (!(placements[i].placement.topology() == placements[0].placement.topology())) {
      return InvalidInput("placement ", i, " has another shape than the first");
    }
    if (placements[i].decided_last_step >= num_steps) {
      return InvalidInput("placement ", i, " covers steps up to ", placements[i].decided_last_step,
                          ", the run has ", num_steps, " steps");
    }
  }
  return absl::OkStatus();
}

// `from` with those layers of `to` in which `before` and `after` differ.
absl::StatusOr<Placement> ReplaceChangedLayers(const Placement& from, const Placement& to,
                                               const Placement& before, const Placement& after) {
  std::vector<LayerPlacement> changed;
  for (int32_t layer = 0; layer < before.topology().num_layers(); ++layer) {
    if (before.Layer(LayerId{layer}) != after.Layer(LayerId{layer}))
      changed.push_back(to.Layer(LayerId{layer}));
  }
  return from.WithLayers(changed);
}

// Returns the placements that the policy would have switched to at the run's own switches.
absl::StatusOr<std::vector<Placement>> PolicyPlacements(std::span<const Load> step_loads,
                                                        std::span<const RunPlacement> placements,
                                                        const Policy& policy) {
  std::vector<Placement> result = {placements.front().placement};
  const Topology& topology = placements.front().placement.topology();
  for (size_t i = 1; i < placements.size(); ++i) {
    const RunPlacement& placement = placements[i];
    if (placement.decided_last_step < placement.decided_first_step) {
      result.push_back(placement.placement);
      continue;
    }
    EPLB_ASSIGN_OR_RETURN(const Load load, SumLoads(step_loads, placement.decided_first_step,
                                                    placement.decided_last_step));
    EPLB_ASSIGN_OR_RETURN(
        const Placement aligned,
        SolveAligned(policy, {.load = load, .topology = topology, .previous = &result.back()}));
    EPLB_ASSIGN_OR_RETURN(Placement next,
                          ReplaceChangedLayers(result.back(), aligned, placements[i - 1].placement,
                                               placement.placement));
    result.push_back(std::move(next));
  }
  return result;
}

absl::StatusOr<int64_t> TransfersOf(std::span<const Placement> placements) {
  int64_t transfers = 0;
  for (size_t i = 1; i < placements.size(); ++i) {
    EPLB_ASSIGN_OR_RETURN(const MoveSummary moves,
                          SummariseMoves(placements[i - 1], placements[i]));
    transfers += moves.transfers;
  }
  return transfers;
}

void AddStep(const Evaluation& evaluation, RunSeries& series) {
  series.balancedness.push_back(evaluation.mean_balancedness);
  const double mean = evaluation.gpu_loads.sum() / static_cast<double>(evaluation.gpu_loads.cols());
  series.slowdown.push_back(mean > 0 ? std::optional(std::max(1.0, evaluation.peak_load / mean))
                                     : std::nullopt);
  series.peak_tokens += evaluation.peak_load;
}

absl::Status AddStep(const Load& load, const Placement& placement, SplitMode split,
                     RunSeries& series) {
  EPLB_ASSIGN_OR_RETURN(const Evaluation evaluation, EvaluateSplit(load, placement, split));
  AddStep(evaluation, series);
  return absl::OkStatus();
}

// A placement that is decided anew for each window of steps, on that very window.
class Hindsight {
 public:
  Hindsight(std::span<const Load> step_loads, const Topology& topology, int64_t window_steps)
      : step_loads_(step_loads),
        topology_(topology),
        window_steps_(window_steps),
        placement_(Placement::Static(topology)) {}

  // Adds a step to `series`, after deciding where a window begins with it.
  absl::Status Add(int64_t step, const Policy& policy, SplitMode split, RunSeries& series) {
    if (step % window_steps_ == 0) EPLB_RETURN_IF_ERROR(Decide(step, policy, split, series));
    return AddStep(step_loads_[static_cast<size_t>(step)], placement_, split, series);
  }

 private:
  absl::Status Decide(int64_t step, const Policy& policy, SplitMode split, RunSeries& series) {
    const int64_t last = std::min(step + window_steps_, std::ssize(step_loads_)) - 1;
    EPLB_ASSIGN_OR_RETURN(const Load window, SumLoads(step_loads_, step, last));
    PolicyInput input{.load = window, .topology = topology_};
    if (split == SplitMode::kBatch) {
      input.previous = &placement_;
      input.split = split;
      input.recent =
          step_loads_.subspan(static_cast<size_t>(step), static_cast<size_t>(last - step + 1));
    }
    EPLB_ASSIGN_OR_RETURN(const Placement best, policy.Solve(input));
    EPLB_ASSIGN_OR_RETURN(Placement next, Align(placement_, best));
    EPLB_ASSIGN_OR_RETURN(const MoveSummary moves, SummariseMoves(placement_, next));
    series.transfers += moves.transfers;
    placement_ = std::move(next);
    return absl::OkStatus();
  }

  const std::span<const Load> step_loads_;
  const Topology& topology_;
  const int64_t window_steps_;
  Placement placement_;
};

}  // namespace

absl::StatusOr<Load> SumLoads(std::span<const Load> step_loads, int64_t first, int64_t last) {
  if (first < 0 || last < first || last >= static_cast<int64_t>(step_loads.size())) {
    return InvalidInput("steps ", first, "..", last, " are outside the run's ", step_loads.size(),
                        " steps");
  }
  std::vector<const Load*> loads;
  for (int64_t step = first; step <= last; ++step) {
    loads.push_back(&step_loads[static_cast<size_t>(step)]);
  }
  return CombineLoads(loads, std::nullopt);
}

std::optional<double> MeanOf(std::span<const std::optional<double>> series,
                             const std::vector<bool>& included) {
  FigureMean mean;
  for (size_t i = 0; i < std::min(series.size(), included.size()); ++i) {
    if (included[i]) mean.Add(series[i]);
  }
  return mean.Value();
}

absl::StatusOr<std::optional<double>> MeasuredBalancedness(std::span<const Load> step_loads,
                                                           std::span<const RunPlacement> placements,
                                                           const StepSpan& steps, SplitMode split) {
  EPLB_RETURN_IF_ERROR(CheckOrder(placements, static_cast<int64_t>(step_loads.size())));
  const Topology& topology = placements.front().placement.topology();
  RealMatrix gpu_loads = RealMatrix::Zero(topology.num_layers(), topology.num_gpus());
  std::vector<double> peaks(split == SplitMode::kBatch ? gpu_loads.rows() : 0, 0.0);
  for (size_t i = 0; i < placements.size(); ++i) {
    const int64_t begin = std::max(steps.first, placements[i].step);
    const int64_t end =
        i + 1 < placements.size() ? std::min(steps.last, placements[i + 1].step - 1) : steps.last;
    if (begin > end) continue;
    EPLB_ASSIGN_OR_RETURN(const Load load, SumLoads(step_loads, begin, end));
    if (split == SplitMode::kEqual) {
      EPLB_ASSIGN_OR_RETURN(const Evaluation part, Evaluate(load, placements[i].placement));
      gpu_loads += part.gpu_loads;
      continue;
    }
    const auto batches =
        step_loads.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin + 1));
    EPLB_ASSIGN_OR_RETURN(const Evaluation part, EvaluateBatches(batches, placements[i].placement));
    gpu_loads += part.gpu_loads;
    for (size_t layer = 0; layer < peaks.size(); ++layer) peaks[layer] += part.max_gpu_load[layer];
  }
  return EvaluateGpuLoads(std::move(gpu_loads), topology.num_gpus(), peaks).mean_balancedness;
}

absl::StatusOr<std::optional<double>> LayoutBalancedness(
    std::span<const Load> step_loads, const StepSpan& steps, SplitMode split,
    const std::function<absl::StatusOr<Evaluation>(const Load&)>& evaluate) {
  EPLB_ASSIGN_OR_RETURN(const Load sum, SumLoads(step_loads, steps.first, steps.last));
  EPLB_ASSIGN_OR_RETURN(Evaluation of_sum, evaluate(sum));
  if (split == SplitMode::kEqual) return of_sum.mean_balancedness;
  std::vector<double> peaks(of_sum.max_gpu_load.size(), 0.0);
  for (int64_t step = steps.first; step <= steps.last; ++step) {
    EPLB_ASSIGN_OR_RETURN(const Evaluation batch, evaluate(step_loads[static_cast<size_t>(step)]));
    for (size_t layer = 0; layer < peaks.size(); ++layer) peaks[layer] += batch.max_gpu_load[layer];
  }
  const auto num_gpus = static_cast<int32_t>(of_sum.gpu_loads.cols());
  return EvaluateGpuLoads(std::move(of_sum.gpu_loads), num_gpus, peaks).mean_balancedness;
}

absl::StatusOr<RunFigures> EvaluateRun(std::span<const Load> step_loads,
                                       std::span<const RunPlacement> placements,
                                       const RunReviewOptions& options) {
  const auto num_steps = static_cast<int64_t>(step_loads.size());
  if (options.window_steps < 1) {
    return InvalidInput("a window has ", options.window_steps, " steps");
  }
  EPLB_RETURN_IF_ERROR(CheckOrder(placements, num_steps));
  EPLB_ASSIGN_OR_RETURN(const std::vector<Placement> solved,
                        PolicyPlacements(step_loads, placements, options.policy));
  const Topology& topology = placements.front().placement.topology();
  const Placement unmoved = Placement::Static(topology);
  Hindsight hindsight(step_loads, topology, options.window_steps);
  Hindsight hindsight_split(step_loads, topology, options.window_steps);
  RunFigures figures;
  EPLB_ASSIGN_OR_RETURN(figures.policy.transfers, TransfersOf(solved));
  size_t current = 0;
  for (int64_t step = 0; step < num_steps; ++step) {
    for (; current + 1 < placements.size() && placements[current + 1].step <= step; ++current) {
      EPLB_ASSIGN_OR_RETURN(
          const MoveSummary moves,
          SummariseMoves(placements[current].placement, placements[current + 1].placement));
      figures.run.transfers += moves.transfers;
    }
    if (current > 0 && figures.first_switch_step < 0) figures.first_switch_step = step;
    const Load& load = step_loads[static_cast<size_t>(step)];
    const Placement& ran = placements[current].placement;
    constexpr SplitMode kEqual = SplitMode::kEqual;
    EPLB_RETURN_IF_ERROR(AddStep(load, ran, options.split, figures.run));
    AddStep(EvaluateWithoutEplb(load, topology.num_gpus()), figures.without_eplb);
    EPLB_RETURN_IF_ERROR(AddStep(load, unmoved, kEqual, figures.unmoved));
    EPLB_RETURN_IF_ERROR(AddStep(load, solved[current], kEqual, figures.policy));
    EPLB_RETURN_IF_ERROR(hindsight.Add(step, options.policy, kEqual, figures.hindsight));
    if (options.split == kEqual) continue;
    EPLB_RETURN_IF_ERROR(AddStep(load, ran, kEqual, figures.equal_shares));
    EPLB_RETURN_IF_ERROR(hindsight_split.Add(step, *options.hindsight_split, options.split,
                                             figures.hindsight_split));
  }
  figures.equal_shares.transfers = figures.run.transfers;
  return figures;
}

}  // namespace eplb
