// The next layout of one layer for exact splits: the incumbent, or what a few copies make of it.
#ifndef EPLB_PLACEMENT_SEARCH_SPLIT_CHOICE_H_
#define EPLB_PLACEMENT_SEARCH_SPLIT_CHOICE_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/search/domain.h"

namespace eplb {

struct SplitChoice {
  std::span<const int32_t> incumbent;   // [S], valid on the domain
  std::span<const int32_t> other = {};  // [S], the only candidate besides; empty: outlets are
  std::span<const std::vector<double>> batches;  // each [n], oldest first
  int32_t copies_per_gpu = 0;                    // at most, into each GPU
  // Copying all slots must take this part of the mean load from the mean of the least maxima.
  double price_of_all_slots = 0;
  // Exchanges of the largest candidate.
  int32_t most_swaps = 0;
  const std::atomic<bool>* abandoned = nullptr;
};

// The candidate with the least mean of (least maximum / mean GPU load) over the batches, plus the
// price of its copies: the incumbent; what OutletSteps make of it with more and more exchanges
// for the domain's load; rings from scratch (MakeOutletRing). Or `other` instead of those. The
// incumbent where none is better. REQUIRES: at most SplitPeaks::kMaxGpus GPUs. Deterministic.
// cost: that of OutletSteps, and a dozen layouts by SplitPeaks. threads: safe.
std::vector<int32_t> ChooseForSplit(const Domain& domain, const SplitChoice& choice);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_SPLIT_CHOICE_H_
