#include "placement/search/arrangement.h"

#include <algorithm>

namespace eplb {

Arrangement::Arrangement(const Domain& domain)
    : domain_(&domain),
      gpu_of_(domain.GpuOfSlot()),
      head_(domain.load.size(), kEmpty),
      count_(domain.load.size()),
      unit_(domain.load.size()),
      tokens_(domain.slots.size()) {
  first_.push_back(0);
  for (int32_t gpu = 0; gpu < domain.num_gpus(); ++gpu) {
    first_.push_back(first_.back() + domain.slots[AsIndex(gpu)]);
    min_copies_.push_back(domain.MinCopies(gpu));
    max_copies_.push_back(domain.MaxCopies(gpu));
    inverse_speed_.push_back(1 / domain.speed[AsIndex(gpu)]);
  }
  expert_.assign(gpu_of_.size(), kEmpty);
  slot_unit_.assign(gpu_of_.size(), 0.0);
  next_.assign(gpu_of_.size(), kEmpty);
  previous_.assign(gpu_of_.size(), kEmpty);
}

int32_t Arrangement::HottestGpu() const {
  int32_t hottest = 0;
  for (int32_t gpu = 1; gpu < num_gpus(); ++gpu) {
    if (load(gpu) > load(hottest)) hottest = gpu;
  }
  return hottest;
}

int32_t Arrangement::CopiesOn(int32_t gpu, int32_t expert) const {
  int32_t copies = 0;
  if (count(expert) < end_slot(gpu) - first_slot(gpu)) {
    for (int32_t slot = FirstOf(expert); slot != kEmpty; slot = NextOf(slot)) {
      copies += gpu_of(slot) == gpu ? 1 : 0;
    }
  } else {
    for (int32_t slot = first_slot(gpu); slot < end_slot(gpu); ++slot) {
      copies += expert_in(slot) == expert ? 1 : 0;
    }
  }
  return copies;
}

bool Arrangement::MayArrive(int32_t gpu, int32_t expert) const {
  if (domain_->only_on_affine_node && !domain_->IsAtHome(gpu, expert)) return false;
  return CopiesOn(gpu, expert) < max_copies_[AsIndex(gpu)];
}

bool Arrangement::MayLeave(int32_t gpu, int32_t expert) const {
  const int32_t least = min_copies_[AsIndex(gpu)];
  return least == 0 || CopiesOn(gpu, expert) > least;
}

bool Arrangement::AffinityKept(int32_t gpu, int32_t to, int32_t expert) const {
  if (!domain_->has_node_affinity()) return true;
  const auto is_home = [&](int32_t g) { return domain_->IsAtHome(g, expert); };
  if (!is_home(gpu) || (to != kEmpty && is_home(to))) return true;
  int32_t others = -1;  // the one that leaves
  for (int32_t slot = FirstOf(expert); slot != kEmpty; slot = NextOf(slot)) {
    others += is_home(gpu_of(slot)) ? 1 : 0;
  }
  return others > 0;
}

bool Arrangement::IsOnTwoSites(int32_t expert, int32_t slot, int32_t to) const {
  int32_t first = to == kEmpty ? kEmpty : domain_->SiteOf(to);
  for (int32_t s = FirstOf(expert); s != kEmpty; s = NextOf(s)) {
    if (s == slot) continue;
    const int32_t site = domain_->SiteOf(gpu_of(s));
    if (first == kEmpty) first = site;
    if (site != first) return true;
  }
  return false;
}

bool Arrangement::SitesKept(int32_t slot, int32_t to) const {
  const std::vector<bool>& bound = domain_->on_two_sites;
  const int32_t expert = expert_in(slot);
  return bound.empty() || !bound[AsIndex(expert)] || IsOnTwoSites(expert, slot, to);
}

bool Arrangement::MaySwap(int32_t a, int32_t b) const {
  const int32_t gpu_a = gpu_of(a);
  const int32_t gpu_b = gpu_of(b);
  const int32_t expert_a = expert_in(a);
  const int32_t expert_b = expert_in(b);
  return expert_a != expert_b && MayArrive(gpu_b, expert_a) && MayArrive(gpu_a, expert_b) &&
         MayLeave(gpu_a, expert_a) && MayLeave(gpu_b, expert_b) &&
         AffinityKept(gpu_a, gpu_b, expert_a) && AffinityKept(gpu_b, gpu_a, expert_b) &&
         SitesKept(a, gpu_b) && SitesKept(b, gpu_a);
}

bool Arrangement::MaySpare(int32_t slot) const {
  const int32_t gpu = gpu_of(slot);
  const int32_t expert = expert_in(slot);
  return count(expert) > 1 && MayLeave(gpu, expert) && AffinityKept(gpu, kEmpty, expert) &&
         SitesKept(slot, kEmpty);
}

bool Arrangement::MayReplace(int32_t slot, int32_t expert) const {
  return expert_in(slot) != expert && count(expert_in(slot)) > 1 &&
         MayArrive(gpu_of(slot), expert) && MaySpare(slot);
}

void Arrangement::Reset(std::span<const int32_t> counts) {
  std::ranges::fill(expert_, kEmpty);
  std::ranges::fill(head_, kEmpty);
  std::ranges::fill(tokens_, 0.0);
  journal_.clear();  // nothing of before can be taken back
  for (size_t expert = 0; expert < count_.size(); ++expert) {
    SetCount(static_cast<int32_t>(expert), counts[expert]);
  }
}

void Arrangement::Assign(std::span<const int32_t> experts) {
  std::ranges::fill(count_, 0);
  for (const int32_t expert : experts) ++count_[AsIndex(expert)];
  const std::vector<int32_t> counts = count_;
  Reset(counts);
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    Put(static_cast<int32_t>(slot), experts[slot]);
  }
}

void Arrangement::SetCount(int32_t expert, int32_t count) {
  const auto e = AsIndex(expert);
  count_[e] = count;
  unit_[e] = domain_->load[e] / count;
}

void Arrangement::Link(int32_t slot, int32_t expert) {
  const auto s = AsIndex(slot);
  int32_t& head = head_[AsIndex(expert)];
  expert_[s] = expert;
  slot_unit_[s] = unit(expert);
  next_[s] = head;
  previous_[s] = kEmpty;
  if (head != kEmpty) previous_[AsIndex(head)] = slot;
  head = slot;
}

void Arrangement::Unlink(int32_t slot) {
  const auto s = AsIndex(slot);
  const int32_t next = next_[s];
  const int32_t previous = previous_[s];
  if (next != kEmpty) previous_[AsIndex(next)] = previous;
  if (previous != kEmpty) {
    next_[AsIndex(previous)] = next;
  } else {
    head_[AsIndex(expert_[s])] = next;
  }
}

void Arrangement::Put(int32_t slot, int32_t expert) {
  Link(slot, expert);
  tokens_[AsIndex(gpu_of(slot))] += unit(expert);
}

void Arrangement::MoveToEmpty(int32_t from, int32_t to) {
  const int32_t expert = expert_in(from);
  tokens_[AsIndex(gpu_of(from))] -= unit(expert);
  Unlink(from);
  expert_[AsIndex(from)] = kEmpty;
  Put(to, expert);
}

void Arrangement::Swap(int32_t a, int32_t b) {
  journal_.push_back({a, b, kEmpty});
  DoSwap(a, b);
}

void Arrangement::Replace(int32_t slot, int32_t expert) {
  journal_.push_back({slot, kEmpty, expert_in(slot)});
  DoReplace(slot, expert);
}

void Arrangement::BeginJournal() {
  journal_.clear();
  journal_tokens_ = tokens_;
}

void Arrangement::RollBack() {
  for (auto change = journal_.rbegin(); change != journal_.rend(); ++change) {
    if (change->other_slot == kEmpty) {
      DoReplace(change->slot, change->expert);
    } else {
      DoSwap(change->slot, change->other_slot);
    }
  }
  journal_.clear();
  tokens_ = journal_tokens_;  // without the rounding errors of going there and back
}

void Arrangement::DoSwap(int32_t a, int32_t b) {
  const int32_t expert_a = expert_in(a);
  const int32_t expert_b = expert_in(b);
  const double difference = unit(expert_a) - unit(expert_b);
  tokens_[AsIndex(gpu_of(a))] -= difference;
  tokens_[AsIndex(gpu_of(b))] += difference;
  Unlink(a);
  Unlink(b);
  Link(a, expert_b);
  Link(b, expert_a);
}

void Arrangement::DoReplace(int32_t slot, int32_t expert) {
  const int32_t leaving = expert_in(slot);
  const auto change_units = [&](int32_t of, int32_t by) {
    const double before = unit(of);
    SetCount(of, count(of) + by);
    const double difference = unit(of) - before;
    for (int32_t s = FirstOf(of); s != kEmpty; s = NextOf(s)) {
      tokens_[AsIndex(gpu_of(s))] += difference;
      slot_unit_[AsIndex(s)] = unit(of);
    }
  };
  tokens_[AsIndex(gpu_of(slot))] -= unit(leaving);
  Unlink(slot);
  change_units(leaving, -1);
  change_units(expert, +1);
  Link(slot, expert);
  tokens_[AsIndex(gpu_of(slot))] += unit(expert);
}

}  // namespace eplb
