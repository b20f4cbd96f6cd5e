#include "placement/search/split_choice.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "placement/policy.h"
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
        gpu_of_(domain.GpuOfSlot()),
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
    FindHolders();
    const std::vector<int32_t> hot = Heaviest(load, worst.tight);
    const std::vector<int32_t> slots = LeastMissed(load, worst.tight);
    const std::vector<int32_t> from = best_;
    const double before = best_score_;
    best_score_ -= kLeastRelief;
    for (const int32_t expert : hot) {
      for (const int32_t slot : slots) {
        if (IsOn(gpu_of_[AsIndex(slot)], expert)) continue;
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
  void FindHolders() {
    holders_.assign(domain_.load.size(), {});
    for (size_t slot = 0; slot < best_.size(); ++slot) {
      holders_[AsIndex(best_[slot])].push_back(gpu_of_[slot]);
    }
  }

  bool IsOn(int32_t gpu, int32_t expert) const {
    const std::vector<int32_t>& gpus = holders_[AsIndex(expert)];
    return std::find(gpus.begin(), gpus.end(), gpu) != gpus.end();
  }

  // The experts that only tight GPUs hold, those with most tokens.
  std::vector<int32_t> Heaviest(const std::vector<double>& load,
                                const std::vector<bool>& tight) const {
    std::vector<int32_t> experts;
    for (size_t expert = 0; expert < holders_.size(); ++expert) {
      const std::vector<int32_t>& gpus = holders_[expert];
      const bool within =
          std::all_of(gpus.begin(), gpus.end(), [&](int32_t gpu) { return tight[AsIndex(gpu)]; });
      if (within && load[expert] > 0) experts.push_back(static_cast<int32_t>(expert));
    }
    std::stable_sort(experts.begin(), experts.end(),
                     [&](int32_t a, int32_t b) { return load[AsIndex(a)] > load[AsIndex(b)]; });
    experts.resize(std::min(experts.size(), kHotTried));
    return experts;
  }

  // Slots with replicas off the tight GPUs, those of experts with fewest tokens per replica.
  std::vector<int32_t> LeastMissed(const std::vector<double>& load,
                                   const std::vector<bool>& tight) const {
    std::vector<std::pair<double, int32_t>> slots;
    for (size_t slot = 0; slot < best_.size(); ++slot) {
      const auto expert = AsIndex(best_[slot]);
      if (tight[AsIndex(gpu_of_[slot])] || holders_[expert].size() < 2) continue;
      slots.emplace_back(load[expert] / static_cast<double>(holders_[expert].size()),
                         static_cast<int32_t>(slot));
    }
    std::sort(slots.begin(), slots.end());
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
  std::vector<int32_t> gpu_of_;  // [S]
  double best_score_;
  std::vector<std::vector<int32_t>> holders_;  // [n], GPUs that hold each expert in the best layout
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
