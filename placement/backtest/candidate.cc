#include "placement/backtest/candidate.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/policies/registry.h"

namespace eplb {
namespace {

constexpr double kDecay = 0.5;
constexpr int32_t kCadences[] = {1, 2, 4};
constexpr LoadEstimate kEstimates[] = {LoadEstimate::kLast, LoadEstimate::kAverage,
                                       LoadEstimate::kSum};

const char* ShortName(LoadEstimate estimate) {
  switch (estimate) {
    case LoadEstimate::kLast:
      return "last";
    case LoadEstimate::kAverage:
      return "ema";
    case LoadEstimate::kSum:
      return "sum";
  }
  return "";
}

const char* LongName(LoadEstimate estimate) {
  switch (estimate) {
    case LoadEstimate::kLast:
      return "on the last window";
    case LoadEstimate::kAverage:
      return "on an average that halves with each window";
    case LoadEstimate::kSum:
      return "on the sum of 4 windows";
  }
  return "";
}

}  // namespace

std::string TextOf(const Candidate& candidate) {
  if (candidate.policy.empty()) return "do nothing";
  return absl::StrCat(std::string(candidate.policy), " ", LongName(candidate.estimate),
                      candidate.cadence == 1
                          ? std::string(", at every opportunity")
                          : absl::StrCat(", at every ", candidate.cadence,
                                         candidate.cadence == 2 ? "nd" : "th", " opportunity"));
}

std::string NameOf(const Candidate& candidate) {
  if (candidate.policy.empty()) return std::string(kNoPolicyName);
  return absl::StrCat(std::string(candidate.policy), "/", ShortName(candidate.estimate), "/",
                      candidate.cadence);
}

std::vector<Candidate> CandidatesFor(SplitMode split) {
  std::vector<Candidate> candidates;
  for (const std::string_view policy : PolicyNames()) {
    const PolicyTraits traits = TraitsOf(policy);
    const TriedFor tried =
        split == SplitMode::kBatch ? traits.tried_for_batch : traits.tried_for_equal;
    if (tried == TriedFor::kNever) continue;
    std::vector<Candidate> of_policy;
    for (const LoadEstimate estimate : kEstimates) {
      for (const int32_t cadence : kCadences) of_policy.push_back({policy, estimate, cadence});
    }
    const auto place = tried == TriedFor::kFirst ? candidates.begin() : candidates.end();
    candidates.insert(place, of_policy.begin(), of_policy.end());
  }
  return candidates;
}

absl::StatusOr<ExpectedLoad> ExpectLoad(LoadEstimate estimate,
                                        std::span<const SeenWindow> windows) {
  const size_t most = estimate == LoadEstimate::kLast ? 1 : kEstimateWindows;
  windows = windows.last(std::min(windows.size(), most));
  std::vector<const Load*> loads;
  std::vector<double> steps;
  std::vector<Load> recent;
  for (const SeenWindow& window : windows) {
    loads.push_back(window.load.get());
    steps.push_back(static_cast<double>(window.num_steps));
    recent.push_back(*window.load);
  }
  std::optional<double> decay;
  if (estimate == LoadEstimate::kAverage) decay = kDecay;
  EPLB_ASSIGN_OR_RETURN(Load load, CombineLoads(loads, decay));
  return ExpectedLoad{.load = std::move(load),
                      .num_steps = CombineSteps(steps, decay),
                      .recent = std::move(recent),
                      .recent_steps = std::accumulate(steps.begin(), steps.end(), 0.0)};
}

}  // namespace eplb
