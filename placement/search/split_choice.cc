#include "placement/search/split_choice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "placement/search/outlets.h"
#include "placement/search/split_peaks.h"

namespace eplb {
namespace {

constexpr double kPower = 1;
// Rings from scratch: the part of a GPU's mean load above which an expert gets further outlets; 0:
// none does. No single one wins on all loads.
constexpr double kMostOfMean[] = {0, 0.9, 0.7, 0.5};

bool IsUnwanted(const std::atomic<bool>* abandoned) {
  return abandoned != nullptr && abandoned->load(std::memory_order_relaxed);
}

class SplitContest {
 public:
  SplitContest(const Domain& domain, const SplitChoice& choice)
      : domain_(domain),
        choice_(choice),
        peaks_(domain, choice.batches),
        best_(choice.incumbent.begin(), choice.incumbent.end()),
        best_score_(peaks_.MeanOf(choice.incumbent, kPower)) {}

  void Offer(const std::optional<std::vector<int32_t>>& layout) {
    if (!layout.has_value()) return;
    const LayoutCopies copies = CopiesBetween(domain_, choice_.incumbent, *layout);
    if (copies.sum == 0 || copies.most > choice_.copies_per_gpu) return;
    const double price =
        choice_.price_of_all_slots * copies.sum / static_cast<double>(layout->size());
    if (1 + price >= best_score_) return;  // no layout is below 1
    const double score = peaks_.MeanOf(*layout, kPower) + price;
    if (score >= best_score_) return;
    best_ = *layout;
    best_score_ = score;
  }

  std::vector<int32_t> TakeBest() { return std::move(best_); }

 private:
  const Domain& domain_;
  const SplitChoice& choice_;
  SplitPeaks peaks_;
  std::vector<int32_t> best_;
  double best_score_;
};

}  // namespace

std::vector<int32_t> ChooseForSplit(const Domain& domain, const SplitChoice& choice) {
  SplitContest contest(domain, choice);
  if (!choice.other.empty()) {
    contest.Offer(std::vector<int32_t>(choice.other.begin(), choice.other.end()));
    return contest.TakeBest();
  }
  OutletSteps steps(domain);
  if (AllowsOutletRing(domain) && steps.Start(choice.incumbent)) {
    contest.Offer(steps.WithOutlets());
    for (int32_t i = 0; i < choice.most_swaps && !IsUnwanted(choice.abandoned) && steps.Swap();
         ++i) {
      contest.Offer(steps.WithOutlets());
    }
  }
  for (const double most_of_mean : kMostOfMean) {
    if (IsUnwanted(choice.abandoned)) break;
    contest.Offer(MakeOutletRing(domain, most_of_mean));
  }
  return contest.TakeBest();
}

}  // namespace eplb
