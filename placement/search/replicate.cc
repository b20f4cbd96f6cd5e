#include "placement/search/replicate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace eplb {

Replicator::Replicator(const Domain& domain) : domain_(&domain), num_slots_(domain.num_slots()) {}

void Replicator::Begin() {
  least_ = domain_->MinReplicas();
  most_ = domain_->MaxReplicas();
  weight_ = domain_->load;
  by_load_.clear();
  if (std::ranges::all_of(weight_, [](double w) { return w == 0; })) {
    std::ranges::fill(weight_, 1.0);
  }
}

void Replicator::Enter(int32_t expert, const std::vector<int32_t>& counts) {
  const auto e = AsIndex(expert);
  heap_.push_back({weight_[e] / counts[e], expert});
}

bool Replicator::Spend(int32_t spare, std::vector<int32_t>& counts) {
  std::make_heap(heap_.begin(), heap_.end(), Lighter);
  while (spare > 0 && !heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), Lighter);
    Entry& heaviest = heap_.back();
    const auto expert = AsIndex(heaviest.expert);
    if (counts[expert] == most_) {
      heap_.pop_back();
      continue;
    }
    --spare;
    ++counts[expert];
    heaviest.unit = weight_[expert] / counts[expert];
    std::push_heap(heap_.begin(), heap_.end(), Lighter);
  }
  heap_.clear();
  return spare == 0;
}

void Replicator::Greedy(std::vector<int32_t>& counts) {
  counts.assign(weight_.size(), least_);
  for (int32_t expert = 0; expert < domain_->num_experts(); ++expert) Enter(expert, counts);
  Spend(num_slots_ - least_ * domain_->num_experts(), counts);
}

bool Replicator::GreedyWithHot(int32_t num_hot, int32_t hot_slots, Spare spare,
                               std::vector<int32_t>& counts) {
  const int32_t hot_spare = hot_slots - least_ * num_hot;
  int32_t rest = num_slots_ - hot_slots - least_ * (domain_->num_experts() - num_hot);
  if (hot_spare < 0 || rest < 0) return false;
  const std::span<const int32_t> order(by_load());
  const auto hot = AsIndex(num_hot);
  counts.assign(weight_.size(), least_);
  for (const int32_t expert : order.first(hot)) Enter(expert, counts);
  if (!Spend(hot_spare, counts)) return false;
  if (spare == Spare::kToLightest) {
    for (auto expert = order.rbegin(); expert != order.rend() - num_hot && rest > 0; ++expert) {
      const int32_t more = std::min(rest, std::min(most_ - least_, 1));
      counts[AsIndex(*expert)] += more;
      rest -= more;
    }
    if (rest == 0) return true;
  }
  for (const int32_t expert : order.subspan(hot)) Enter(expert, counts);
  return Spend(rest, counts);
}

const std::vector<int32_t>& Replicator::by_load() {
  if (by_load_.empty()) {
    by_load_.resize(weight_.size());
    std::iota(by_load_.begin(), by_load_.end(), 0);
    std::ranges::stable_sort(
        by_load_, [&](int32_t a, int32_t b) { return weight_[AsIndex(a)] > weight_[AsIndex(b)]; });
  }
  return by_load_;
}

bool Replicator::Level(double most_unit, std::vector<int32_t>& counts) {
  counts.assign(weight_.size(), least_);
  double rest = num_slots_ - least_ * domain_->num_experts();
  for (size_t expert = 0; expert < weight_.size(); ++expert) {
    const double needed = std::min<double>(most_, std::ceil(weight_[expert] / most_unit));
    if (needed <= least_) {
      Enter(static_cast<int32_t>(expert), counts);
      continue;
    }
    rest -= needed - least_;
    if (rest < 0) break;
    counts[expert] = static_cast<int32_t>(needed);
  }
  if (rest >= 0) return Spend(static_cast<int32_t>(rest), counts);
  heap_.clear();
  return false;
}

}  // namespace eplb
