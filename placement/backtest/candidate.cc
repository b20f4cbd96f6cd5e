#include "placement/backtest/candidate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/backtest/load_forecast.h"
#include "placement/policies/registry.h"

namespace eplb {
namespace {

struct Tried {
  LoadEstimate estimate;
  std::vector<int32_t> cadences;
};

// Few enough that a window's solutions stay as cheap as its answer.
std::vector<Tried> AllTried() {
  return {{{1}, {1, 2, 4}},
          {{4, 0.5}, {1}},
          {{4}, {1, 2, 4}},
          {{.windows = 2, .forecasting = Forecasting::kTrend}, {1}},
          {{.windows = kAutoWindows, .forecasting = Forecasting::kKalman}, {1, 4}},
          {{.windows = kAutoWindows, .as_scenarios = true}, {1}}};
}

const char* ShortName(const LoadEstimate& estimate) {
  if (estimate.as_scenarios) return "scenarios";
  if (estimate.forecasting == Forecasting::kTrend) return "trend";
  if (estimate.forecasting == Forecasting::kKalman) return "kalman";
  if (estimate.windows == 1) return "last";
  return estimate.decay ? "ema" : "sum";
}

std::string LongName(const LoadEstimate& estimate) {
  if (estimate.forecasting == Forecasting::kTrend) return "on the trend of the last two windows";
  if (estimate.forecasting == Forecasting::kKalman) {
    return absl::StrCat("on ", estimate.windows, " windows, filtered by their drift and noise");
  }
  if (estimate.as_scenarios) return "on the typical loads of the job, each as a scenario";
  if (estimate.windows == 1) return "on the last window";
  if (estimate.decay) return "on an average that halves with each window";
  return absl::StrCat("on the sum of ", estimate.windows, " windows");
}

// num_windows: recent ones, which the history holds.
absl::StatusOr<ExpectedLoad> ExpectHistory(std::span<const TypicalLoad> history,
                                           int64_t num_windows) {
  ExpectedLoad expected{
      .load = *history.front().load, .num_windows = num_windows, .recent_steps = 0};
  for (const TypicalLoad& one : history) {
    EPLB_ASSIGN_OR_RETURN(Load load, Load::FromEstimates(one.num_windows * one.load->ToDouble()));
    expected.recent.push_back(std::move(load));
    expected.recent_steps += one.num_windows * one.num_steps;
    expected.scenarios.push_back({.load = *one.load, .weight = one.num_windows});
  }
  std::vector<const Load*> loads;
  for (const Load& load : expected.recent) loads.push_back(&load);
  EPLB_ASSIGN_OR_RETURN(expected.load, CombineLoads(loads, std::nullopt));
  expected.num_steps = expected.recent_steps;
  return expected;
}

}  // namespace

std::string TextOf(const Candidate& candidate) {
  if (candidate.policy.empty()) return "do nothing";
  return absl::StrCat(candidate.policy, " ", LongName(candidate.estimate),
                      candidate.cadence == 1
                          ? std::string(", at every opportunity")
                          : absl::StrCat(", at every ", candidate.cadence,
                                         candidate.cadence == 2 ? "nd" : "th", " opportunity"));
}

std::string NameOf(const Candidate& candidate) {
  if (candidate.policy.empty()) return std::string(kNoPolicyName);
  return absl::StrCat(candidate.policy, "/", ShortName(candidate.estimate), "/", candidate.cadence);
}

std::vector<Candidate> CandidatesFor(SplitMode split) {
  std::vector<Candidate> candidates;
  for (const std::string& policy : PolicyNames()) {
    const PolicyTraits traits = TraitsOf(policy);
    const TriedFor tried =
        split == SplitMode::kBatch ? traits.tried_for_batch : traits.tried_for_equal;
    if (tried == TriedFor::kNever) continue;
    std::vector<Candidate> of_policy;
    for (const auto& [estimate, cadences] : AllTried()) {
      for (const int32_t cadence : cadences) {
        of_policy.push_back({policy, estimate, cadence});
      }
    }
    const auto place = tried == TriedFor::kFirst ? candidates.begin() : candidates.end();
    candidates.insert(place, of_policy.begin(), of_policy.end());
  }
  return candidates;
}

absl::StatusOr<ExpectedLoad> ExpectLoad(const LoadEstimate& estimate,
                                        std::span<const SeenWindow> windows,
                                        std::span<const TypicalLoad> history) {
  windows = windows.last(std::min(windows.size(), static_cast<size_t>(estimate.windows)));
  std::vector<const Load*> loads;
  std::vector<double> steps;
  std::vector<Load> recent;
  for (const SeenWindow& window : windows) {
    loads.push_back(window.load.get());
    steps.push_back(static_cast<double>(window.num_steps));
    recent.push_back(*window.load);
  }
  const auto num_windows = std::ssize(windows);
  if (estimate.forecasting != Forecasting::kNone) {
    EPLB_ASSIGN_OR_RETURN(const Load load, estimate.forecasting == Forecasting::kTrend
                                               ? ForecastTrend(recent)
                                               : ForecastFiltered(recent));
    return ExpectedLoad{.load = load,
                        .num_steps = steps.back(),
                        .num_windows = num_windows,
                        .recent = {load},
                        .recent_steps = steps.back()};
  }
  EPLB_ASSIGN_OR_RETURN(Load load, CombineLoads(loads, estimate.decay));
  if (estimate.as_scenarios && history.size() > 1) return ExpectHistory(history, num_windows);
  return ExpectedLoad{.load = std::move(load),
                      .num_steps = CombineSteps(steps, estimate.decay),
                      .num_windows = num_windows,
                      .recent = std::move(recent),
                      .recent_steps = std::accumulate(steps.begin(), steps.end(), 0.0)};
}

}  // namespace eplb
