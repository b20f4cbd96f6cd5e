#include "placement/policies/deepseek_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "placement/policies/torch_sum.h"

namespace eplb {
namespace {

// Keys carry the index in the low half, so that the largest key is the heaviest expert, or the
// lightest bin, with the lowest index among equals.
uint64_t HeaviestKey(float load, size_t index) {
  return uint64_t{OrderedKey(load)} << 32 | (UINT32_MAX - index);
}
uint64_t LightestKey(float load, size_t index) {
  return ~(uint64_t{OrderedKey(load)} << 32 | index);
}
size_t IndexOf(uint64_t key) { return UINT32_MAX - (key & UINT32_MAX); }

constexpr uint64_t kNoRoom = 0;  // below the key of every bin with room

}  // namespace

BalancedPacking::BalancedPacking(TieBreak tie_break, size_t num_items, size_t num_bins)
    : bin_size_(num_items / num_bins),
      order_(tie_break, num_items),
      lightest_(num_bins),
      bin_weight_(num_bins),
      bin_count_(num_bins),
      place_(num_items) {
  std::iota(place_.begin(), place_.end(), 0);
}

std::span<const int32_t> BalancedPacking::Pack(std::span<const float> loads) {
  if (bin_size_ == 1) return place_;  // item i in bin i, by the reference's shortcut
  std::fill(bin_weight_.begin(), bin_weight_.end(), 0.0F);
  std::fill(bin_count_.begin(), bin_count_.end(), 0);
  for (size_t bin = 0; bin < bin_count_.size(); ++bin) lightest_.Set(bin, LightestKey(0, bin));
  lightest_.Play();
  bool weighs_nan = false;
  for (const int32_t item : order_.Sort(loads)) {
    const size_t bin = weighs_nan ? LightestByScan() : IndexOf(lightest_.winner());
    Put(item, bin, loads[item]);
    const bool has_room = bin_count_[bin] < bin_size_;
    lightest_.Replace(bin, has_room ? LightestKey(bin_weight_[bin], bin) : kNoRoom);
    weighs_nan = weighs_nan || std::isnan(bin_weight_[bin]);
  }
  return place_;
}

void BalancedPacking::Put(int32_t item, size_t bin, float load) {
  place_[item] = static_cast<int32_t>(bin * bin_size_ + bin_count_[bin]);
  bin_weight_[bin] += load;
  ++bin_count_[bin];
}

size_t BalancedPacking::LightestByScan() const {
  size_t best = bin_count_.size();
  for (size_t bin = 0; bin < bin_count_.size(); ++bin) {
    if (bin_count_[bin] == bin_size_) continue;
    if (best == bin_count_.size() || bin_weight_[bin] < bin_weight_[best]) best = bin;
  }
  return best;
}

DeepseekLayerSolver::DeepseekLayerSolver(const DeepseekFrame& frame, TieBreak tie_break)
    : frame_(frame),
      group_packing_(tie_break, frame.groups, frame.nodes),
      slot_packing_(tie_break, frame.slots / frame.nodes, frame.gpus / frame.nodes),
      heaviest_(frame.experts / frame.nodes),
      group_load_(frame.groups),
      ordered_expert_(frame.experts),
      ordered_weight_(frame.experts),
      share_(frame.experts / frame.nodes),
      count_(frame.experts / frame.nodes),
      slot_expert_(frame.slots / frame.nodes),
      slot_rank_(frame.slots / frame.nodes),
      slot_load_(frame.slots / frame.nodes) {
  std::iota(ordered_expert_.begin(), ordered_expert_.end(), 0);
  std::iota(slot_expert_.begin(), slot_expert_.begin() + static_cast<ptrdiff_t>(share_.size()), 0);
}

void DeepseekLayerSolver::Solve(std::span<const float> weight, const DeepseekLayerMaps& maps) {
  if (groups_move()) OrderGroups(weight);
  for (size_t i = 0; i < weight.size(); ++i) ordered_weight_[i] = weight[ordered_expert_[i]];
  const size_t node_experts = share_.size();
  const size_t node_slots = slot_load_.size();
  for (size_t node = 0; node < frame_.nodes; ++node) {
    Replicate(std::span(ordered_weight_).subspan(node * node_experts, node_experts));
    const int32_t* experts = &ordered_expert_[node * node_experts];
    const std::span<const int32_t> place = slot_packing_.Pack(slot_load_);
    for (size_t slot = 0; slot < node_slots; ++slot) {
      const size_t to = node * node_slots + static_cast<size_t>(place[slot]);
      maps.physical_to_logical[to] = experts[slot_expert_[slot]];
      maps.replica_rank[to] = slot_rank_[slot];
    }
    for (size_t i = 0; i < node_experts; ++i) maps.counts[experts[i]] = count_[i];
  }
}

void DeepseekLayerSolver::OrderGroups(std::span<const float> weight) {
  const size_t group_size = frame_.experts / frame_.groups;
  for (size_t group = 0; group < frame_.groups; ++group) {
    group_load_[group] = TorchSum(weight.subspan(group * group_size, group_size));
  }
  const std::span<const int32_t> place = group_packing_.Pack(group_load_);
  for (size_t group = 0; group < frame_.groups; ++group) {
    const auto to = ordered_expert_.begin() + static_cast<ptrdiff_t>(place[group] * group_size);
    std::iota(to, to + static_cast<ptrdiff_t>(group_size),
              static_cast<int32_t>(group * group_size));
  }
}

void DeepseekLayerSolver::Replicate(std::span<const float> weight) {
  const size_t num_experts = weight.size();
  std::copy(weight.begin(), weight.end(), share_.begin());
  std::fill(count_.begin(), count_.end(), 1);
  if (slot_load_.size() > num_experts) {
    for (size_t i = 0; i < num_experts; ++i) heaviest_.Set(i, HeaviestKey(weight[i], i));
    heaviest_.Play();
  }
  for (size_t slot = num_experts; slot < slot_load_.size(); ++slot) {
    const size_t expert = IndexOf(heaviest_.winner());
    slot_expert_[slot] = static_cast<int32_t>(expert);
    slot_rank_[slot] = count_[expert]++;
    share_[expert] = weight[expert] / static_cast<float>(count_[expert]);
    heaviest_.Replace(expert, HeaviestKey(share_[expert], expert));
  }
  for (size_t slot = 0; slot < slot_load_.size(); ++slot) {
    slot_load_[slot] = share_[slot_expert_[slot]];
  }
}

}  // namespace eplb
