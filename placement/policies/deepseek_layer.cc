#include "placement/policies/deepseek_layer.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

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

constexpr size_t kEpGroups = 8;       // floats of one AVX2 vector
constexpr size_t kAccumulators = 4;   // vectors added side by side
constexpr size_t kCascadeLevels = 4;  // levels of the cascade
constexpr size_t kBlock = kEpGroups * kAccumulators;

using Block = std::array<float, kBlock>;

void Add(Block& to, const float* from) {
  for (size_t i = 0; i < kBlock; ++i) to[i] += from[i];
}

// Sums num_blocks consecutive blocks element by element. Every 2^power blocks level 0 is emptied
// into level 1, every 2^(2 power) blocks level 1 into level 2, and so on, so that small addends
// meet small sums.
Block CascadeSum(const float* row, size_t num_blocks) {
  const size_t ceil_log2 =
      num_blocks <= 2 ? 1 : static_cast<size_t>(std::bit_width(num_blocks - 1));
  const size_t power = std::max<size_t>(4, ceil_log2 / kCascadeLevels);
  const size_t mask = (size_t{1} << power) - 1;
  std::array<Block, kCascadeLevels> levels{};
  for (size_t i = 0; i < num_blocks;) {
    Add(levels[0], row + i * kBlock);
    ++i;
    if ((i & mask) != 0) continue;
    for (size_t level = 1; level < kCascadeLevels; ++level) {
      Add(levels[level], levels[level - 1].data());
      levels[level - 1].fill(0);
      if ((i & (mask << (level * power))) != 0) break;
    }
  }
  for (size_t level = 1; level < kCascadeLevels; ++level) Add(levels[0], levels[level].data());
  return levels[0];
}

// Rows shorter than a vector: four scalar accumulators, the rest goes to the first.
float ShortSum(std::span<const float> row) {
  std::array<float, kAccumulators> sums{};
  const size_t even = row.size() / kAccumulators * kAccumulators;
  for (size_t i = 0; i < even; ++i) sums[i % kAccumulators] += row[i];
  for (size_t i = even; i < row.size(); ++i) sums[0] += row[i];
  return ((sums[0] + sums[1]) + sums[2]) + sums[3];
}

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
  std::ranges::fill(bin_weight_, 0.0F);
  std::ranges::fill(bin_count_, 0);
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

DeepseekLayerSolver::DeepseekLayerSolver(const DeepseekLayerShape& frame, TieBreak tie_break)
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
  std::ranges::fill(count_, 1);
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

DescendingOrder::DescendingOrder(TieBreak tie_break, size_t capacity)
    : tie_break_(tie_break), entries_(capacity), swap_(capacity), order_(capacity) {}

std::span<const int32_t> DescendingOrder::Sort(std::span<const float> values) {
  const size_t count = values.size();
  // Complemented keys turn "falling value" into "rising integer".
  for (size_t i = 0; i < count; ++i) {
    entries_[i] = uint64_t{~OrderedKey(values[i])} << 32 | i;
  }
  if (tie_break_ == TieBreak::kStable) {
    SortStable(count);
  } else {
    // The comparator must not look at the index: where std::sort leaves equal values is the point.
    std::sort(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(count),
              [](uint64_t a, uint64_t b) { return a >> 32 < b >> 32; });
  }
  for (size_t i = 0; i < count; ++i) order_[i] = static_cast<int32_t>(entries_[i]);
  return {order_.data(), count};
}

// Entries are distinct, so any sort of whole integers is stable. Long rows go digit by digit from
// the lowest of the key: no comparison, no branch on data; the entries start in index order, which
// each pass keeps among equal digits.
void DescendingOrder::SortStable(size_t count) {
  constexpr size_t kShortRow = 48;  // up to here a comparison sort is faster
  if (count <= kShortRow) {
    std::sort(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(count));
    return;
  }
  constexpr size_t kRadixBits = 8;
  constexpr size_t kDigits = 4;
  constexpr size_t kDigitValues = size_t{1} << kRadixBits;
  const auto digit_of = [](uint64_t entry, size_t digit) {
    return (entry >> (32 + digit * kRadixBits)) % kDigitValues;
  };
  std::array<std::array<uint32_t, kDigitValues>, kDigits> starts{};
  for (size_t i = 0; i < count; ++i) {
    for (size_t digit = 0; digit < kDigits; ++digit) ++starts[digit][digit_of(entries_[i], digit)];
  }
  for (size_t digit = 0; digit < kDigits; ++digit) {
    std::array<uint32_t, kDigitValues>& start = starts[digit];
    if (start[digit_of(entries_[0], digit)] == count) continue;  // all entries have this digit
    uint32_t sum = 0;
    for (uint32_t& value : start) sum += std::exchange(value, sum);
    for (size_t i = 0; i < count; ++i) swap_[start[digit_of(entries_[i], digit)]++] = entries_[i];
    entries_.swap(swap_);
  }
}

float TorchSum(std::span<const float> row) {
  if (row.size() < kEpGroups) return ShortSum(row);
  const size_t num_blocks = row.size() / kBlock;
  Block sums = CascadeSum(row.data(), num_blocks);
  // Whole vectors after the last block go to the first accumulator, EP group by EP group.
  const size_t whole = row.size() / kEpGroups * kEpGroups;
  for (size_t i = num_blocks * kBlock; i < whole; ++i) sums[i % kEpGroups] += row[i];
  for (size_t i = kEpGroups; i < kBlock; ++i) sums[i % kEpGroups] += sums[i];
  float sum = 0;
  for (size_t i = whole; i < row.size(); ++i) sum += row[i];
  for (size_t ep_group = 0; ep_group < kEpGroups; ++ep_group) sum += sums[ep_group];
  return sum;
}

}  // namespace eplb
