#include "placement/search/improvement.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace eplb {

namespace {

// Softness in parts of the scale, and of the peak's excess over the scale; the larger counts.
constexpr double kLeastSoftness = 0.03;
constexpr double kSoftnessOfExcess = 0.25;

// A step without a copy (a replica returns to its place) counts as a quarter of a copy.
constexpr double kFreeStep = 0.25;
// A replica is replaced by a more useful one if that lowers the squared units by this part of the
// best possible. Among those slots the load decides.
constexpr double kNearlyBest = 0.7;
// Exchanges with this many of the coolest GPUs are looked at. More of them balance 512 GPUs no
// better, in twice the time.
constexpr size_t kCoolest = 128;
// Less than this part of all weights is rounding.
constexpr double kLeastPart = 1e-12;
// More than the rounding of a few products, in parts of the sum of their absolute values.
constexpr double kRounding = 1e-12;

double CommonInverseSpeed(const Arrangement& arrangement) {
  for (int32_t gpu = 1; gpu < arrangement.num_gpus(); ++gpu) {
    if (arrangement.inverse_speed(gpu) != arrangement.inverse_speed(0)) return 0;
  }
  return arrangement.inverse_speed(0);
}

}  // namespace

double SoftnessOf(double peak, double scale) {
  return std::max(kLeastSoftness * scale, kSoftnessOfExcess * (peak - scale));
}

double SmoothMaximum(std::span<const double> loads, double scale) {
  const double peak = *std::ranges::max_element(loads);
  const double softness = SoftnessOf(peak, scale);
  double sum = 0;
  for (const double load : loads) sum += std::exp((load - peak) / softness);
  return peak + softness * std::log(sum);
}

ImprovementSteps::ImprovementSteps(Arrangement& arrangement, double scale,
                                   const ImprovementLimits& limits)
    : arrangement_(arrangement),
      scale_(scale),
      limits_(limits),
      inverse_speed_(CommonInverseSpeed(arrangement)),
      num_experts_(arrangement.domain().num_experts()),
      had_(AsIndex(arrangement.num_gpus()) * AsIndex(num_experts_)),
      incumbent_(arrangement.experts().begin(), arrangement.experts().end()),
      holds_(had_.size()),
      arrived_(AsIndex(arrangement.num_gpus())),
      weight_(AsIndex(arrangement.num_gpus())),
      root_(weight_.size()),
      less_(incumbent_.size()),
      more_(incumbent_.size()),
      by_load_(AsIndex(arrangement.num_gpus())) {
  for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
    had_[IndexOf(arrangement.gpu_of(slot), arrangement.expert_in(slot))] = 1;
  }
  std::iota(by_load_.begin(), by_load_.end(), 0);
  Refresh();
}

int32_t ImprovementSteps::CostOf(int32_t gpu, int32_t expert) const {
  return had_[IndexOf(gpu, expert)] != 0 ? 0 : 1;
}

int32_t ImprovementSteps::CopiesMore(int32_t gpu, int32_t arriving, int32_t leaving) const {
  return CostOf(gpu, arriving) - CostOf(gpu, leaving);
}

bool ImprovementSteps::Affordable(int32_t gpu, int32_t copies) const {
  return arrived_[AsIndex(gpu)] + copies <= limits_.copies_per_gpu;
}

double ImprovementSteps::WeightOf(double load) const {
  return std::exp((load - peak_) / softness_);
}

void ImprovementSteps::Refresh() {
  peak_ = arrangement_.MaxLoad();
  softness_ = SoftnessOf(peak_, scale_);
  std::ranges::fill(arrived_, 0);
  std::ranges::fill(holds_, 0);
  copies_ = 0;
  sum_of_weights_ = 0;
  for (int32_t gpu = 0; gpu < arrangement_.num_gpus(); ++gpu) {
    for (int32_t slot = arrangement_.first_slot(gpu); slot < arrangement_.end_slot(gpu); ++slot) {
      const int32_t cost = CostOf(gpu, arrangement_.expert_in(slot));
      arrived_[AsIndex(gpu)] += cost;
      copies_ += cost;
      holds_[IndexOf(gpu, arrangement_.expert_in(slot))] = 1;
      const double load = arrangement_.unit_in(slot) * arrangement_.inverse_speed(gpu);
      more_[AsIndex(slot)] = std::exp(load / softness_);
      less_[AsIndex(slot)] = 1 / more_[AsIndex(slot)];
    }
    weight_[AsIndex(gpu)] = WeightOf(arrangement_.load(gpu));
    root_[AsIndex(gpu)] = std::sqrt(weight(gpu));
    sum_of_weights_ += weight(gpu);
  }
  std::ranges::stable_sort(
      by_load_, [&](int32_t a, int32_t b) { return arrangement_.load(a) > arrangement_.load(b); });
}

bool ImprovementSteps::Step(double least_win) {
  Choice best = {.value = sum_of_weights_ * std::max(kLeastPart, least_win * scale_ / softness_)};
  ConsiderSwaps(best);
  ConsiderReplacements(best);
  if (best.slot < 0) return false;
  if (best.other_slot >= 0) {
    arrangement_.Swap(best.slot, best.other_slot);
  } else {
    arrangement_.Replace(best.slot, best.expert);
  }
  Refresh();
  return true;
}

// No exchange that is worse than a good one is the best. Of equally good ones the first counts, so
// that the good one is found again, but for rounding.
void ImprovementSteps::ConsiderSwaps(Choice& best) const {
  Choice good = best;
  ConsiderSwapsOf(by_load_.front(), by_load_.back(), good);
  best.value = std::max(best.value, good.value * (1 - kRounding));
  ConsiderAllSwaps(best);
  if (best.slot < 0) best = good;
}

void ImprovementSteps::ConsiderAllSwaps(Choice& best) const {
  const size_t coolest = std::min(by_load_.size(), kCoolest);
  for (const int32_t hot : by_load_) {
    if (weight(hot) <= best.value * kFreeStep) return;
    for (const int32_t cool : std::span(by_load_).last(coolest)) {
      if (arrangement_.load(cool) >= arrangement_.load(hot)) continue;
      if (MostOfSwap(hot, cool) > best.value * LeastCopies(hot, cool)) {
        ConsiderSwapsOf(hot, cool, best);
      }
    }
  }
}

// At equal speeds the product of the two weights stays what it is, and their sum is least where
// they are equal.
double ImprovementSteps::MostOfSwap(int32_t hot, int32_t cool) const {
  if (arrangement_.inverse_speed(hot) != arrangement_.inverse_speed(cool)) return weight(hot);
  const double apart = root_[AsIndex(hot)] - root_[AsIndex(cool)];
  return apart * apart;
}

double ImprovementSteps::LeastCopies(int32_t hot, int32_t cool) const {
  const bool untouched = arrived_[AsIndex(hot)] == 0 && arrived_[AsIndex(cool)] == 0;
  return untouched ? 2 : kFreeStep;
}

// At equal speeds no exchange of two slots takes more than `most_of_slots` from the weights.
void ImprovementSteps::ConsiderSwapsOf(int32_t hot, int32_t cool, Choice& best) const {
  const double most = MostOfSwap(hot, cool);
  const double least_copies = LeastCopies(hot, cool);
  const bool equal = arrangement_.inverse_speed(hot) == arrangement_.inverse_speed(cool);
  const double both = weight(hot) + weight(cool);
  for (int32_t a = arrangement_.first_slot(hot); a < arrangement_.end_slot(hot); ++a) {
    const int32_t leaving = arrangement_.expert_in(a);
    const double hot_less = weight(hot) * less_[AsIndex(a)];
    const double cool_more = weight(cool) * more_[AsIndex(a)];
    for (int32_t b = arrangement_.first_slot(cool); b < arrangement_.end_slot(cool); ++b) {
      const double tokens = arrangement_.unit_in(a) - arrangement_.unit_in(b);
      if (tokens <= 0) continue;
      const double after = hot_less * more_[AsIndex(b)] + cool_more * less_[AsIndex(b)];
      const double most_of_slots = both - after + kRounding * (both + after);
      if (equal && most_of_slots <= best.value * least_copies) continue;
      const int32_t arriving = arrangement_.expert_in(b);
      const int32_t to_hot = CopiesMore(hot, arriving, leaving);
      const int32_t to_cool = CopiesMore(cool, leaving, arriving);
      const double copies = std::max(kFreeStep, double{1} * (to_hot + to_cool));
      if (most <= best.value * copies || !Affordable(hot, to_hot) || !Affordable(cool, to_cool) ||
          copies_ + to_hot + to_cool > limits_.copies) {
        continue;
      }
      const double win =
          weight(hot) + weight(cool) -
          WeightOf((arrangement_.tokens(hot) - tokens) * arrangement_.inverse_speed(hot)) -
          WeightOf((arrangement_.tokens(cool) + tokens) * arrangement_.inverse_speed(cool));
      if (win > best.value * copies && arrangement_.MaySwap(a, b)) {
        best = {.value = win / copies, .slot = a, .other_slot = b};
      }
    }
  }
}

double ImprovementSteps::WinWithout(int32_t gpu, double tokens) const {
  const double left = arrangement_.tokens(gpu) - tokens;
  return weight(gpu) - WeightOf(left * arrangement_.inverse_speed(gpu));
}

double ImprovementSteps::TrialWin() const {
  double win = 0;
  for (const ReplacementTrial::Change& change : trial_.changes()) {
    win += WinWithout(change.gpu, -change.tokens);
  }
  return win;
}

std::vector<ImprovementSteps::Replica> ImprovementSteps::MoreReplicas() const {
  std::vector<Replica> replicas;
  for (int32_t expert = 0; expert < num_experts_; ++expert) {
    const double unit =
        arrangement_.domain().load[AsIndex(expert)] / (arrangement_.count(expert) + 1);
    const double less = arrangement_.unit(expert) - unit;
    double win = 0;
    for (int32_t s = arrangement_.FirstOf(expert); s != Arrangement::kEmpty;
         s = arrangement_.NextOf(s)) {
      win += WinWithout(arrangement_.gpu_of(s), less);
    }
    Replica replica = {.expert = expert, .unit = unit, .win = win, .less = 0, .more = 0};
    if (inverse_speed_ > 0) {
      replica.less = std::exp(-less * inverse_speed_ / softness_);
      replica.more = std::exp(unit * inverse_speed_ / softness_);
    }
    replicas.push_back(replica);
  }
  std::ranges::stable_sort(replicas, std::ranges::greater(), &Replica::win);
  return replicas;
}

ImprovementSteps::Departure ImprovementSteps::DepartureOf(int32_t slot) const {
  const int32_t expert = arrangement_.expert_in(slot);
  Departure departure = {
      .slot = slot, .gpu = arrangement_.gpu_of(slot), .expert = expert, .harms = {}, .harm = 0};
  const double more = arrangement_.unit(expert) / (arrangement_.count(expert) - 1);
  for (int32_t s = arrangement_.FirstOf(expert); s != Arrangement::kEmpty;
       s = arrangement_.NextOf(s)) {
    if (s == slot) continue;
    const int32_t gpu = arrangement_.gpu_of(s);
    departure.harms.push_back({.gpu = gpu, .weight = -WinWithout(gpu, -more)});
    departure.harm += departure.harms.back().weight;
  }
  return departure;
}

double ImprovementSteps::MostHere(const Departure& departure, const Replica& replica) const {
  const double before = weight(departure.gpu);
  if (inverse_speed_ == 0) return before;
  const double after = before * less_[AsIndex(departure.slot)] * replica.more;
  return before - after + kRounding * (before + after);
}

void ImprovementSteps::ConsiderReplacements(Choice& best) {
  const std::vector<Replica> replicas = MoreReplicas();
  std::vector<size_t> places(replicas.size());  // places of the experts
  for (size_t i = 0; i < replicas.size(); ++i) places[AsIndex(replicas[i].expert)] = i;
  for (int32_t slot = 0; slot < arrangement_.num_slots(); ++slot) {
    if (arrangement_.count(arrangement_.expert_in(slot)) < 2) continue;
    const double most = replicas.front().win + weight(arrangement_.gpu_of(slot));
    if (most <= best.value * kFreeStep) continue;
    ConsiderReplacementsOf(DepartureOf(slot), replicas, places, best);
  }
}

// Most replicas cost a copy, unless they replace an earlier one, and make up for no harm. The rest
// returns to its place or is held by a harmed GPU.
void ImprovementSteps::ConsiderReplacementsOf(const Departure& departure,
                                              std::span<const Replica> replicas,
                                              std::span<const size_t> places, Choice& best) {
  const int32_t gpu = departure.gpu;
  const double least_copies = CostOf(gpu, departure.expert) == 0 ? 1 : kFreeStep;
  const double harm = departure.harm * (1 - kRounding);
  for (const Replica& replica : replicas) {
    if (replica.win + weight(gpu) - harm <= best.value * least_copies) break;
    if (replica.win + MostHere(departure, replica) - harm <= best.value * least_copies) continue;
    ConsiderReplacement(departure, replica, best);
  }
  const auto consider_rest = [&](std::span<const int32_t> experts, int32_t on) {
    for (int32_t s = arrangement_.first_slot(on); s < arrangement_.end_slot(on); ++s) {
      ConsiderReplacement(departure, replicas[places[AsIndex(experts[AsIndex(s)])]], best);
    }
  };
  consider_rest(incumbent_, gpu);
  for (const Departure::Harm& one : departure.harms) {
    consider_rest(arrangement_.experts(), one.gpu);
  }
}

// Conditions are in the order of cost. A GPU that holds both experts is harmed less.
void ImprovementSteps::ConsiderReplacement(const Departure& departure, const Replica& replica,
                                           Choice& best) {
  const int32_t more = CopiesMore(departure.gpu, replica.expert, departure.expert);
  const double copies = std::max(kFreeStep, double{1} * more);
  double most = replica.win + MostHere(departure, replica);
  const double least = best.value * copies - kRounding * most;
  if (most <= least || replica.expert == departure.expert) return;
  for (const Departure::Harm& one : departure.harms) {
    most -= one.weight * (Holds(one.gpu, replica.expert) ? replica.less : 1);
  }
  if (most <= least || !Affordable(departure.gpu, more) || copies_ + more > limits_.copies ||
      !arrangement_.MayReplace(departure.slot, replica.expert)) {
    return;
  }
  trial_.Try(arrangement_, departure.slot, replica.expert);
  const double win = TrialWin();
  if (win <= best.value * copies) return;
  best = {.value = win / copies, .slot = departure.slot, .expert = replica.expert};
}

bool ImprovementSteps::Spread(double least_part) {
  const std::vector<double>& load = arrangement_.domain().load;
  // Squared units of all replicas of an expert.
  const auto squares = [&](int32_t expert, int32_t replicas) {
    const double tokens = load[AsIndex(expert)];
    return tokens * tokens / replicas;
  };
  double all = 0;
  std::vector<std::pair<double, int32_t>> won;  // by another replica
  double least_missed = -1;
  for (int32_t expert = 0; expert < num_experts_; ++expert) {
    const int32_t count = arrangement_.count(expert);
    const double now = squares(expert, count);
    all += now;
    won.emplace_back(now - squares(expert, count + 1), expert);
    if (count < 2) continue;
    const double missed = squares(expert, count - 1) - now;
    if (least_missed < 0 || missed < least_missed) least_missed = missed;
  }
  if (least_missed < 0) return false;
  std::ranges::stable_sort(won, [](const auto& a, const auto& b) { return a.first > b.first; });
  for (const auto& [squares_won, expert] : won) {
    const double best = squares_won - least_missed;
    if (best <= least_part * all) return false;
    const int32_t slot =
        SlotFor(expert, squares_won - std::max(kNearlyBest * best, least_part * all));
    if (slot < 0) continue;
    arrangement_.Replace(slot, expert);
    Refresh();
    return true;
  }
  return false;
}

int32_t ImprovementSteps::SlotFor(int32_t expert, double most_missed) {
  int32_t best = -1;
  double best_win = 0;
  for (int32_t slot = 0; slot < arrangement_.num_slots(); ++slot) {
    const int32_t leaving = arrangement_.expert_in(slot);
    const int32_t count = arrangement_.count(leaving);
    if (leaving == expert || count < 2) continue;
    const double unit = arrangement_.unit_in(slot);
    if (unit * unit * count / (count - 1) > most_missed) continue;
    const int32_t gpu = arrangement_.gpu_of(slot);
    const int32_t more = CopiesMore(gpu, expert, leaving);
    if (!Affordable(gpu, more) || copies_ + more > limits_.copies ||
        !arrangement_.MayReplace(slot, expert)) {
      continue;
    }
    trial_.Try(arrangement_, slot, expert);
    const double win = TrialWin();
    if (best >= 0 && win <= best_win) continue;
    best = slot;
    best_win = win;
  }
  return best;
}

}  // namespace eplb
