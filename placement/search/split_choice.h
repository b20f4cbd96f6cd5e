// The next layout of one layer for exact splits: the incumbent, or what a few copies make of it.
#pragma once

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

// Returns the candidate with the least mean of (least maximum / mean GPU load) over the batches
// plus the price of its copies; the incumbent if none is better. Candidates are the incumbent, the
// layouts of OutletSteps with more and more exchanges for the domain's load, and rings from scratch
// (MakeOutletRing). With `other` that is the only other candidate. REQUIRES: at most
// SplitPeaks::kMaxGpus GPUs. Deterministic. threads: safe.
//
// cost: that of OutletSteps, and a dozen layouts by SplitPeaks.
std::vector<int32_t> ChooseForSplit(const Domain& domain, const SplitChoice& choice);

}  // namespace eplb
