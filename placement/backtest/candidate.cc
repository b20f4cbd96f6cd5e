#include "placement/backtest/candidate.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/policies/registry.h"

namespace eplb {
namespace {

constexpr int32_t kCadences[] = {1, 2, 4};
constexpr LoadEstimate kEstimates[] = {{1}, {kAutoWindows, 0.5}, {kAutoWindows}};

const char* ShortName(const LoadEstimate& estimate) {
  if (estimate.windows == 1) return "last";
  return estimate.decay ? "ema" : "sum";
}

std::string LongName(const LoadEstimate& estimate) {
  if (estimate.windows == 1) return "on the last window";
  if (estimate.decay) return "on an average that halves with each window";
  return absl::StrCat("on the sum of ", estimate.windows, " windows");
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
    for (const LoadEstimate& estimate : kEstimates) {
      for (const int32_t cadence : kCadences) {
        of_policy.push_back({policy, estimate, cadence});
      }
    }
    const auto place = tried == TriedFor::kFirst ? candidates.begin() : candidates.end();
    candidates.insert(place, of_policy.begin(), of_policy.end());
  }
  return candidates;
}

absl::StatusOr<ExpectedLoad> ExpectLoad(const LoadEstimate& estimate,
                                        std::span<const SeenWindow> windows) {
  windows = windows.last(std::min(windows.size(), static_cast<size_t>(estimate.windows)));
  std::vector<const Load*> loads;
  std::vector<double> steps;
  std::vector<Load> recent;
  for (const SeenWindow& window : windows) {
    loads.push_back(window.load.get());
    steps.push_back(static_cast<double>(window.num_steps));
    recent.push_back(*window.load);
  }
  EPLB_ASSIGN_OR_RETURN(Load load, CombineLoads(loads, estimate.decay));
  return ExpectedLoad{.load = std::move(load),
                      .num_steps = CombineSteps(steps, estimate.decay),
                      .recent = std::move(recent),
                      .recent_steps = std::accumulate(steps.begin(), steps.end(), 0.0)};
}

}  // namespace eplb
