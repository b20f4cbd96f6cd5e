#include "placement/search/split_choice.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "placement/policy.h"
#include "placement/search/arrangement.h"
#include "placement/search/outlets.h"
#include "placement/search/split_peaks.h"

namespace eplb {
namespace {

// Rings from scratch: the part of a GPU's mean load above which an expert gets further outlets; 0:
// none does. No single one wins on all loads.
constexpr double kMostOfMean[] = {0, 0.9, 0.7, 0.5};

// Least reduction of the score by a step of relief beyond its price. A step that wins less fits the
// windows seen and not the next one.
constexpr double kLeastRelief = 0.003;
// Experts and slots that a step of relief tries.
constexpr size_t kHotTried = 2;
constexpr size_t kSlotsTried = 8;

class SplitContest {
 public:
  SplitContest(const Domain& domain, const SplitChoice& choice)
      : domain_(domain),
        choice_(choice),
        peaks_(domain, choice.batches),
        best_(choice.incumbent.begin(), choice.incumbent.end()),
        best_score_(peaks_.MeanOf(choice.incumbent)) {}

  void Offer(const std::optional<std::vector<int32_t>>& layout) {
    if (!layout.has_value()) return;
    const LayoutCopies copies = CopiesBetween(domain_, choice_.incumbent, *layout);
    if (copies.sum == 0 || copies.most > choice_.copies_per_gpu) return;
    const double price =
        choice_.price_of_all_slots * copies.sum / static_cast<double>(layout->size());
    if (1 + price >= best_score_) return;  // no layout is below 1
    const double score = peaks_.MeanOf(*layout) + price;
    if (score >= best_score_) return;
    best_ = *layout;
    best_score_ = score;
  }

  // Gives the experts that fill the tight GPUs of the worst batch one more replica elsewhere, in
  // place of a replica that this batch misses least. False when no such step wins.
  bool Relieve() {
    const SplitPeaks::Worst worst = peaks_.WorstOf(best_);
    if (worst.ratio <= 1) return false;
    const std::vector<double>& load = choice_.batches[worst.batch];
    Arrangement held(domain_);
    held.Assign(best_);
    const std::vector<int32_t> hot = Heaviest(held, load, worst.tight);
    const std::vector<int32_t> slots = LeastMissed(held, load, worst.tight);
    const std::vector<int32_t> from = best_;
    const double before = best_score_;
    best_score_ -= kLeastRelief;
    for (const int32_t expert : hot) {
      for (const int32_t slot : slots) {
        if (held.CopiesOn(held.gpu_of(slot), expert) > 0) continue;
        std::vector<int32_t> layout = from;
        layout[AsIndex(slot)] = expert;
        Offer(layout);
      }
    }
    if (best_ != from) return true;
    best_score_ = before;
    return false;
  }

  std::vector<int32_t> TakeBest() { return std::move(best_); }

 private:
  // The experts that only tight GPUs hold, those with most tokens.
  static std::vector<int32_t> Heaviest(const Arrangement& held, const std::vector<double>& load,
                                       const std::vector<bool>& tight) {
    std::vector<int32_t> experts;
    for (int32_t expert = 0; expert < std::ssize(load); ++expert) {
      int32_t slot = held.FirstOf(expert);
      while (slot != Arrangement::kEmpty && tight[AsIndex(held.gpu_of(slot))]) {
        slot = held.NextOf(slot);
      }
      if (slot == Arrangement::kEmpty && load[AsIndex(expert)] > 0) experts.push_back(expert);
    }
    std::ranges::stable_sort(
        experts, [&](int32_t a, int32_t b) { return load[AsIndex(a)] > load[AsIndex(b)]; });
    experts.resize(std::min(experts.size(), kHotTried));
    return experts;
  }

  // Slots with replicas off the tight GPUs, those of experts with fewest tokens per replica.
  static std::vector<int32_t> LeastMissed(const Arrangement& held, const std::vector<double>& load,
                                          const std::vector<bool>& tight) {
    std::vector<std::pair<double, int32_t>> slots;
    for (int32_t slot = 0; slot < held.num_slots(); ++slot) {
      const int32_t expert = held.expert_in(slot);
      if (tight[AsIndex(held.gpu_of(slot))] || held.count(expert) < 2) continue;
      slots.emplace_back(load[AsIndex(expert)] / held.count(expert), slot);
    }
    std::ranges::sort(slots);
    slots.resize(std::min(slots.size(), kSlotsTried));
    std::vector<int32_t> indices;
    indices.reserve(slots.size());
    for (const auto& [tokens, slot] : slots) indices.push_back(slot);
    return indices;
  }

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
    for (int32_t i = 0; i < choice.most_swaps && !IsAbandoned(choice.abandoned) && steps.Swap();
         ++i) {
      contest.Offer(steps.WithOutlets());
    }
  }
  for (const double most_of_mean : kMostOfMean) {
    if (IsAbandoned(choice.abandoned)) break;
    contest.Offer(MakeOutletRing(domain, most_of_mean));
  }
  for (int32_t i = 0; i < choice.most_swaps && !IsAbandoned(choice.abandoned); ++i) {
    if (!contest.Relieve()) break;
  }
  return contest.TakeBest();
}

}  // namespace eplb
