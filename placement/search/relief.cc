#include "placement/search/relief.h"

#include <algorithm>

namespace eplb {
namespace {

constexpr double kLeastWin = 1e-12;
// A step without a copy (something goes back to where it was) is as good as a quarter of one.
constexpr double kFreeStep = 0.25;
// How far a chain looks.
constexpr size_t kHeavy = 4;
constexpr size_t kCool = 6;
constexpr int kChainSteps = 5;
constexpr int32_t kWalkSteps = 80;

}  // namespace

Relief::Relief(Arrangement& arrangement, int32_t max_copies_per_gpu)
    : arrangement_(arrangement),
      max_copies_per_gpu_(max_copies_per_gpu),
      num_experts_(arrangement.domain().num_experts()),
      had_(static_cast<size_t>(arrangement.num_gpus()) * static_cast<size_t>(num_experts_)),
      arrived_(static_cast<size_t>(arrangement.num_gpus())) {
  for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
    had_[IndexOf(arrangement.gpu_of(slot), arrangement.expert_in(slot))] = 1;
  }
}

int32_t Relief::CostOf(int32_t gpu, int32_t expert) const {
  return had_[IndexOf(gpu, expert)] != 0 ? 0 : 1;
}

bool Relief::Affordable(int32_t gpu, int32_t arriving, int32_t leaving) const {
  return arrived_[static_cast<size_t>(gpu)] + CostOf(gpu, arriving) - CostOf(gpu, leaving) <=
         max_copies_per_gpu_;
}

void Relief::Count() {
  std::fill(arrived_.begin(), arrived_.end(), 0);
  copies_ = 0;
  for (int32_t gpu = 0; gpu < arrangement_.num_gpus(); ++gpu) {
    for (int32_t slot = arrangement_.first_slot(gpu); slot < arrangement_.end_slot(gpu); ++slot) {
      const int32_t cost = CostOf(gpu, arrangement_.expert_in(slot));
      arrived_[static_cast<size_t>(gpu)] += cost;
      copies_ += cost;
    }
  }
}

bool Relief::Step(double target, double least_win) {
  const int32_t hot = arrangement_.HottestGpu();
  if (arrangement_.load(hot) <= target) return false;
  Choice best = {.value = least_win};
  ConsiderSwaps(hot, target, best);
  ConsiderReplacements(hot, target, best);
  if (best.slot < 0) return false;
  if (best.other_slot >= 0) {
    arrangement_.Swap(best.slot, best.other_slot);
  } else {
    arrangement_.Replace(best.slot, best.expert);
  }
  Count();
  return true;
}

void Relief::Do(const Kick& kick) {
  if (kick.other_slot >= 0) {
    arrangement_.Swap(kick.slot, kick.other_slot);
  } else {
    arrangement_.Replace(kick.slot, kick.expert);
  }
  Count();
}

bool Relief::WithinBudget() const {
  return std::all_of(arrived_.begin(), arrived_.end(),
                     [&](int32_t copies) { return copies <= max_copies_per_gpu_; });
}

// Exchanges of the hottest GPU's heavy experts with the lightest expert of a cool GPU, and more
// replicas of them there in place of what is missed least.
std::vector<Relief::Kick> Relief::Kicks(int32_t hot) const {
  std::vector<int32_t> heavy;
  for (int32_t slot = arrangement_.first_slot(hot); slot < arrangement_.end_slot(hot); ++slot) {
    heavy.push_back(slot);
  }
  std::stable_sort(heavy.begin(), heavy.end(), [&](int32_t a, int32_t b) {
    return arrangement_.unit_in(a) > arrangement_.unit_in(b);
  });
  heavy.resize(std::min(heavy.size(), kHeavy));
  std::vector<int32_t> cool;
  for (int32_t gpu = 0; gpu < arrangement_.num_gpus(); ++gpu) {
    if (gpu != hot) cool.push_back(gpu);
  }
  std::stable_sort(cool.begin(), cool.end(), [&](int32_t a, int32_t b) {
    return arrangement_.load(a) < arrangement_.load(b);
  });
  cool.resize(std::min(cool.size(), kCool));
  std::vector<Kick> kicks;
  for (const int32_t slot : heavy) {
    const int32_t expert = arrangement_.expert_in(slot);
    for (const int32_t gpu : cool) {
      int32_t lightest = -1;
      int32_t spare = -1;
      for (int32_t other = arrangement_.first_slot(gpu); other < arrangement_.end_slot(gpu);
           ++other) {
        const double unit = arrangement_.unit_in(other);
        if ((lightest < 0 || unit < arrangement_.unit_in(lightest)) &&
            arrangement_.MaySwap(slot, other)) {
          lightest = other;
        }
        if ((spare < 0 || unit < arrangement_.unit_in(spare)) &&
            arrangement_.MayReplace(other, expert)) {
          spare = other;
        }
      }
      if (lightest >= 0) kicks.push_back({slot, lightest, -1});
      if (spare >= 0) kicks.push_back({spare, -1, expert});
    }
  }
  return kicks;
}

double Relief::Follow(const Kick& kick, double target) {
  const double peak = arrangement_.MaxLoad();
  const int32_t copies = copies_;
  Do(kick);
  if (!WithinBudget()) return 0;
  for (int step = 0; step < kChainSteps && arrangement_.MaxLoad() > target; ++step) {
    if (!Step(target, 0)) break;
    const double win = peak * (1 - kLeastWin) - std::max(arrangement_.MaxLoad(), target);
    // Another step is worth it only while the chain has not won.
    if (win > 0) return win / std::max(kFreeStep, double{1} * (copies_ - copies));
  }
  const double win = peak * (1 - kLeastWin) - std::max(arrangement_.MaxLoad(), target);
  return win / std::max(kFreeStep, double{1} * (copies_ - copies));
}

bool Relief::Chain(double target, double least_win) {
  const int32_t hot = arrangement_.HottestGpu();
  if (arrangement_.load(hot) <= target) return false;
  double best = least_win;
  const Kick* chosen = nullptr;
  const std::vector<Kick> kicks = Kicks(hot);
  for (const Kick& kick : kicks) {
    arrangement_.BeginJournal();
    const double value = Follow(kick, target);
    arrangement_.RollBack();
    Count();
    if (value <= best) continue;
    best = value;
    chosen = &kick;
  }
  if (chosen == nullptr) return false;
  arrangement_.BeginJournal();
  Follow(*chosen, target);
  return true;
}

bool Relief::Walk(double target, double least_win) {
  const int32_t hot = arrangement_.HottestGpu();
  if (arrangement_.load(hot) <= target) return false;
  for (int32_t i = 0; i < kWalkSteps; ++i) {
    const int32_t a =
        random_.Below(4) == 0
            ? random_.Below(arrangement_.num_slots())
            : arrangement_.first_slot(hot) +
                  random_.Below(arrangement_.end_slot(hot) - arrangement_.first_slot(hot));
    const int32_t b = random_.Below(arrangement_.num_slots());
    const bool swap = random_.Below(2) == 0;
    if (swap ? arrangement_.gpu_of(a) == arrangement_.gpu_of(b) || !arrangement_.MaySwap(a, b)
             : !arrangement_.MayReplace(b, arrangement_.expert_in(a))) {
      continue;
    }
    const Kick kick = swap ? Kick{a, b, -1} : Kick{b, -1, arrangement_.expert_in(a)};
    arrangement_.BeginJournal();
    if (Follow(kick, target) > least_win) return true;
    arrangement_.RollBack();
    Count();
  }
  return false;
}

void Relief::ConsiderSwaps(int32_t hot, double target, Choice& best) const {
  const double peak = arrangement_.load(hot) * (1 - kLeastWin);
  for (int32_t gpu = 0; gpu < arrangement_.num_gpus(); ++gpu) {
    if (gpu == hot || arrangement_.load(gpu) >= peak) continue;
    for (int32_t a = arrangement_.first_slot(hot); a < arrangement_.end_slot(hot); ++a) {
      const int32_t leaving = arrangement_.expert_in(a);
      for (int32_t b = arrangement_.first_slot(gpu); b < arrangement_.end_slot(gpu); ++b) {
        const double win = arrangement_.unit_in(a) - arrangement_.unit_in(b);
        if (win <= 0) continue;
        const double after =
            std::max((arrangement_.tokens(hot) - win) * arrangement_.inverse_speed(hot),
                     (arrangement_.tokens(gpu) + win) * arrangement_.inverse_speed(gpu));
        if (after >= peak) continue;
        const int32_t arriving = arrangement_.expert_in(b);
        const double copies =
            std::max(kFreeStep, double{1} * (CostOf(hot, arriving) + CostOf(gpu, leaving)));
        const double value = (peak - std::max(after, target)) / copies;
        const bool better = value > best.value || (value == best.value && after < best.peak);
        if (!better || !Affordable(hot, arriving, leaving) || !Affordable(gpu, leaving, arriving) ||
            !arrangement_.MaySwap(a, b)) {
          continue;
        }
        best = {.value = value, .peak = after, .slot = a, .other_slot = b};
      }
    }
  }
}

void Relief::ConsiderReplacements(int32_t hot, double target, Choice& best) {
  const double peak = arrangement_.load(hot) * (1 - kLeastWin);
  for (int32_t a = arrangement_.first_slot(hot); a < arrangement_.end_slot(hot); ++a) {
    const int32_t expert = arrangement_.expert_in(a);
    for (int32_t slot = 0; slot < arrangement_.num_slots(); ++slot) {
      ConsiderReplacement(slot, expert, target, peak, best);
    }
    for (int32_t other = 0; arrangement_.count(expert) > 1 && other < num_experts_; ++other) {
      ConsiderReplacement(a, other, target, peak, best);
    }
  }
}

void Relief::ConsiderReplacement(int32_t slot, int32_t expert, double target, double peak,
                                 Choice& best) {
  const int32_t leaving = arrangement_.expert_in(slot);
  const int32_t gpu = arrangement_.gpu_of(slot);
  if (arrangement_.count(leaving) < 2 || leaving == expert || !Affordable(gpu, expert, leaving)) {
    return;
  }
  const double copies = std::max(kFreeStep, double{1} * CostOf(gpu, expert));
  if ((peak - target) / copies < best.value) return;
  const double after = trial_.PeakAfter(arrangement_, slot, expert);
  if (after >= peak) return;
  const double value = (peak - std::max(after, target)) / copies;
  const bool better = value > best.value || (value == best.value && after < best.peak);
  if (better && arrangement_.MayReplace(slot, expert)) {
    best = {.value = value, .peak = after, .slot = slot, .expert = expert};
  }
}

}  // namespace eplb
