#include "placement/layer_path.h"

#include <algorithm>
#include <deque>
#include <tuple>

namespace eplb {

LayerPath::LayerPath(LayerPlacement before, LayerPlacement after, int32_t num_experts)
    : before_(std::move(before)),
      after_(std::move(after)),
      now_(before_.physical_to_logical),
      count_(static_cast<size_t>(num_experts)),
      wrong_(static_cast<size_t>(num_experts)) {
  const auto unusable = [](const LayerPlacement& layer) {
    const std::vector<int32_t>& slots = layer.physical_to_logical;
    return std::find(slots.begin(), slots.end(), -1) != slots.end();
  };
  if (unusable(before_) || unusable(after_)) {
    ends_.push_back(0);
    return;
  }
  for (size_t slot = 0; slot < now_.size(); ++slot) {
    const auto expert = static_cast<size_t>(now_[slot]);
    ++count_[expert];
    if (now_[slot] == after_.physical_to_logical[slot]) continue;
    wrong_[expert].push_back(static_cast<int32_t>(slot));
  }
  OverwriteReplicas();
  Exchange();
  if (ends_.empty()) ends_.push_back(0);  // the replicas' order alone differs
}

void LayerPath::Write(int32_t slot, int32_t expert) {
  int32_t& held = now_[static_cast<size_t>(slot)];
  --count_[static_cast<size_t>(held)];
  ++count_[static_cast<size_t>(expert)];
  held = expert;
  changes_.push_back({.slot = slot, .expert = expert});
}

void LayerPath::OverwriteReplicas() {
  std::deque<int32_t> experts;
  for (size_t expert = 0; expert < wrong_.size(); ++expert) {
    if (!wrong_[expert].empty()) experts.push_back(static_cast<int32_t>(expert));
  }
  while (!experts.empty()) {
    const auto expert = static_cast<size_t>(experts.front());
    experts.pop_front();
    while (!wrong_[expert].empty() && count_[expert] > 1) {
      const int32_t slot = wrong_[expert].back();
      wrong_[expert].pop_back();
      const int32_t next = after_.physical_to_logical[static_cast<size_t>(slot)];
      Write(slot, next);
      ends_.push_back(changes_.size());
      if (!wrong_[static_cast<size_t>(next)].empty()) experts.push_back(next);
    }
  }
}

// What is left are cycles: each expert that has to leave a slot is in no other.
void LayerPath::Exchange() {
  for (size_t i = 0; i < now_.size(); ++i) {
    const int32_t held = now_[i];
    const int32_t next = after_.physical_to_logical[i];
    if (held == next) continue;
    const auto slot = static_cast<int32_t>(i);
    const int32_t other = wrong_[static_cast<size_t>(next)].front();
    Write(slot, next);
    Write(other, held);
    ends_.push_back(changes_.size());
    wrong_[static_cast<size_t>(held)].front() = other;
  }
}

std::vector<int32_t> LayerPath::SlotsOf(size_t step) const {
  std::vector<int32_t> slots;
  for (size_t i = step == 0 ? 0 : ends_[step - 1]; i < ends_[step]; ++i) {
    slots.push_back(changes_[i].slot);
  }
  return slots;
}

LayerPlacement LayerPath::At(size_t steps) const {
  if (steps == 0) return before_;
  if (steps == num_steps()) return after_;
  LayerPlacement layer = before_;
  std::vector<bool> moved(count_.size());
  for (size_t i = 0; i < ends_[steps - 1]; ++i) {
    int32_t& held = layer.physical_to_logical[static_cast<size_t>(changes_[i].slot)];
    moved[static_cast<size_t>(held)] = true;
    held = changes_[i].expert;
    moved[static_cast<size_t>(held)] = true;
  }
  // By expert: whether the slot is still to be left, its rank among those alike, and the slot.
  std::vector<std::vector<std::tuple<bool, int32_t, size_t>>> order(count_.size());
  for (size_t slot = 0; slot < layer.physical_to_logical.size(); ++slot) {
    const int32_t expert = layer.physical_to_logical[slot];
    if (!moved[static_cast<size_t>(expert)]) continue;
    const bool leaves = expert != after_.physical_to_logical[slot];
    const int32_t rank = (leaves ? before_ : after_).replica_rank[slot];
    order[static_cast<size_t>(expert)].emplace_back(leaves, rank, slot);
  }
  for (auto& replicas : order) {
    std::sort(replicas.begin(), replicas.end());
    for (size_t rank = 0; rank < replicas.size(); ++rank) {
      layer.replica_rank[std::get<2>(replicas[rank])] = static_cast<int32_t>(rank);
    }
  }
  return layer;
}

}  // namespace eplb
