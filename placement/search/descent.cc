#include "placement/search/descent.h"

#include <algorithm>

namespace eplb {

namespace {

// A step must win more than rounding errors can pretend.
constexpr double kLeastWin = 1e-12;

}  // namespace

void ReplacementTrial::Try(const Arrangement& arrangement, int32_t slot, int32_t expert) {
  const int32_t leaving = arrangement.expert_in(slot);
  const std::vector<double>& load = arrangement.domain().load;
  const double unit = load[AsIndex(expert)] / (arrangement.count(expert) + 1);
  const double unit_left = load[AsIndex(leaving)] / (arrangement.count(leaving) - 1);
  index_.resize(AsIndex(arrangement.num_gpus()), -1);
  changes_.clear();
  const auto add = [&](int32_t gpu, double tokens) {
    int32_t& index = index_[AsIndex(gpu)];
    if (index < 0) {
      index = static_cast<int32_t>(changes_.size());
      changes_.push_back({gpu, 0});
    }
    changes_[AsIndex(index)].tokens += tokens;
  };
  for (int32_t s = arrangement.FirstOf(leaving); s != Arrangement::kEmpty;
       s = arrangement.NextOf(s)) {
    if (s != slot) add(arrangement.gpu_of(s), unit_left - arrangement.unit(leaving));
  }
  for (int32_t s = arrangement.FirstOf(expert); s != Arrangement::kEmpty;
       s = arrangement.NextOf(s)) {
    add(arrangement.gpu_of(s), unit - arrangement.unit(expert));
  }
  add(arrangement.gpu_of(slot), unit - arrangement.unit(leaving));
  for (const Change& change : changes_) index_[AsIndex(change.gpu)] = -1;
}

double ReplacementTrial::PeakAfter(const Arrangement& arrangement, int32_t slot, int32_t expert) {
  Try(arrangement, slot, expert);
  double peak = 0;
  for (const Change& change : changes_) {
    const double tokens = arrangement.tokens(change.gpu) + change.tokens;
    peak = std::max(peak, tokens * arrangement.inverse_speed(change.gpu));
  }
  return peak;
}

void Descent::Swaps(double target, Arrangement& arrangement, WorkBudget& work) {
  while (!work.spent() && arrangement.MaxLoad() > target && SwapOnce(arrangement, work)) {
  }
}

void Descent::SwapsAndCounts(double target, Arrangement& arrangement, WorkBudget& work) {
  while (!work.spent() && arrangement.MaxLoad() > target &&
         (SwapOnce(arrangement, work) || CountOnce(arrangement, work))) {
  }
}

bool Descent::SwapOnce(Arrangement& arrangement, WorkBudget& work) {
  const int32_t hot = arrangement.HottestGpu();
  const double hot_speed = arrangement.inverse_speed(hot);
  const double hot_tokens = arrangement.tokens(hot);
  const int32_t hot_slots = arrangement.end_slot(hot) - arrangement.first_slot(hot);
  Step best = {.peak = arrangement.load(hot) * (1 - kLeastWin)};
  work.left -= int64_t{2} * arrangement.num_gpus();
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    const double speed = arrangement.inverse_speed(gpu);
    const double tokens = arrangement.tokens(gpu);
    // Between these two differences of units both GPUs end below the best step so far.
    double least = hot_tokens - best.peak / hot_speed;
    double most = best.peak / speed - tokens;
    if (gpu == hot || least >= most) continue;
    work.left -= int64_t{hot_slots} * (arrangement.end_slot(gpu) - arrangement.first_slot(gpu));
    for (int32_t a = arrangement.first_slot(hot); a < arrangement.end_slot(hot); ++a) {
      if (IsAbandoned(work.abandoned)) return false;  // a step may look at 2^38 pairs
      const double unit = arrangement.unit_in(a);
      for (int32_t b = arrangement.first_slot(gpu); b < arrangement.end_slot(gpu); ++b) {
        const double win = unit - arrangement.unit_in(b);
        if (win <= least || win >= most || !arrangement.MaySwap(a, b)) continue;
        const double after = std::max((hot_tokens - win) * hot_speed, (tokens + win) * speed);
        if (after >= best.peak) continue;
        best = {.peak = after, .slot = a, .other_slot = b};
        least = hot_tokens - after / hot_speed;
        most = after / speed - tokens;
      }
    }
  }
  if (best.slot < 0) return false;
  arrangement.Swap(best.slot, best.other_slot);
  return true;
}

void Descent::Consider(const Arrangement& arrangement, int32_t slot, int32_t expert, Step& best,
                       WorkBudget& work) {
  work.left -= 2;
  const int32_t leaving = arrangement.expert_in(slot);
  const int32_t others = arrangement.count(leaving) - 1;
  if (others < 1) return;
  // The expert's other GPUs get its tokens. Most steps fail because of them.
  const double rise = arrangement.unit(leaving) / others;
  for (int32_t s = arrangement.FirstOf(leaving); s != Arrangement::kEmpty;
       s = arrangement.NextOf(s)) {
    const int32_t gpu = arrangement.gpu_of(s);
    const double fall = gpu == arrangement.gpu_of(slot) ? arrangement.unit(leaving) + rise
                                                        : arrangement.unit(expert);
    if ((arrangement.tokens(gpu) + rise - fall) * arrangement.inverse_speed(gpu) >= best.peak) {
      return;
    }
  }
  work.left -= int64_t{4} * (arrangement.count(expert) + arrangement.count(leaving));
  if (!arrangement.MayReplace(slot, expert)) return;
  const double peak = trial_.PeakAfter(arrangement, slot, expert);
  if (peak < best.peak) best = {.peak = peak, .slot = slot, .expert = expert};
}

bool Descent::CountOnce(Arrangement& arrangement, WorkBudget& work) {
  const int32_t hot = arrangement.HottestGpu();
  Step best = {.peak = arrangement.load(hot) * (1 - kLeastWin)};
  for (int32_t a = arrangement.first_slot(hot); a < arrangement.end_slot(hot); ++a) {
    if (IsAbandoned(work.abandoned)) return false;
    const int32_t expert = arrangement.expert_in(a);
    for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
      if (arrangement.count(arrangement.expert_in(slot)) > 1) {
        Consider(arrangement, slot, expert, best, work);
      }
    }
    if (arrangement.count(expert) == 1) continue;
    for (int32_t other = 0; other < arrangement.domain().num_experts(); ++other) {
      Consider(arrangement, a, other, best, work);
    }
  }
  if (best.slot < 0) return false;
  arrangement.Replace(best.slot, best.expert);
  return true;
}

}  // namespace eplb
