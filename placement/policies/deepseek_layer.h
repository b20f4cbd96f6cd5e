// DeepSeek's three steps on one layer: expert groups to nodes, replicas, slots to GPUs.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "placement/policy.h"
#include "placement/search/winner_tree.h"

namespace eplb {

// torch's `sort(descending=True)` of float32 values, with its two tie orders.

// Maps a float32 to an integer of the same order: -inf lowest, -0 equal to +0, every NaN equal and
// above +inf, as torch compares.
inline uint32_t OrderedKey(float value) {
  if (std::isnan(value)) return UINT32_MAX;
  const auto bits = std::bit_cast<uint32_t>(value + 0.0F);  // -0 + 0 is +0
  return bits ^ ((bits >> 31) != 0 ? UINT32_MAX : uint32_t{1} << 31);
}

// Sorts rows; holds the scratch memory, so that rows cost no allocation. Threads: one at a time.
class DescendingOrder {
 public:
  // capacity: the longest row.
  DescendingOrder(TieBreak tie_break, size_t capacity);

  // Indices of `values` by falling value, NaN first. The result is valid until the next call.
  // REQUIRES: values.size() <= capacity. cost: O(n) stable, O(n log n) compat.
  std::span<const int32_t> Sort(std::span<const float> values);

 private:
  void SortStable(size_t count);

  TieBreak tie_break_;
  std::vector<uint64_t> entries_;  // key << 32 | index
  std::vector<uint64_t> swap_;
  std::vector<int32_t> order_;
};

// A shape that passed the reference's checks: groups % nodes == 0, experts % groups == 0,
// gpus % nodes == 0, slots % gpus == 0, slots >= experts >= 1.
struct DeepseekLayerShape {
  size_t experts = 0;
  size_t slots = 0;
  size_t groups = 1;
  size_t nodes = 1;
  size_t gpus = 1;
};

// Output of a layer's answer, in the caller's memory.
struct DeepseekLayerMaps {
  std::span<int32_t> physical_to_logical;  // [S]
  std::span<int32_t> replica_rank;         // [S]
  std::span<int32_t> counts;               // [E]
};

// `balanced_packing` of the reference: items by falling load, each to the lightest bin that still
// has room, the first bin on ties; bins are equally full in the end. Threads: one at a time.
class BalancedPacking {
 public:
  // REQUIRES: num_items % num_bins == 0.
  BalancedPacking(TieBreak tie_break, size_t num_items, size_t num_bins);

  // The place of each item, bin * (items per bin) + position in the bin; valid until the next call.
  // loads: [num_items], any float32. cost: O(n log n).
  std::span<const int32_t> Pack(std::span<const float> loads);

 private:
  // Gives one item to a bin.
  void Put(int32_t item, size_t bin, float load);
  // The choice by the reference's own words; the only one that is right once a bin weighs NaN,
  // which wins if it comes first and loses otherwise. REQUIRES: a bin has room.
  size_t LightestByScan() const;

  size_t bin_size_;
  DescendingOrder order_;
  WinnerTree lightest_;
  std::vector<float> bin_weight_;
  std::vector<size_t> bin_count_;
  std::vector<int32_t> place_;
};

// Solves layers of one frame one after the other; holds the scratch memory, so that layers cost no
// allocation. Threads: one at a time.
class DeepseekLayerSolver {
 public:
  DeepseekLayerSolver(const DeepseekLayerShape& frame, TieBreak tie_break);

  // weight: [E], any float32. cost: O(E + S log S) per layer.
  void Solve(std::span<const float> weight, const DeepseekLayerMaps& maps);

 private:
  bool groups_move() const { return frame_.groups > frame_.nodes; }
  void OrderGroups(std::span<const float> weight);
  // Fills slot_expert_, slot_rank_, slot_load_ and count_ of a node.
  void Replicate(std::span<const float> weight);

  DeepseekLayerShape frame_;
  BalancedPacking group_packing_;  // groups on nodes
  BalancedPacking slot_packing_;   // a node's slots on its GPUs
  WinnerTree heaviest_;
  std::vector<float> group_load_;        // [groups]
  std::vector<int32_t> ordered_expert_;  // [E] experts in node order
  std::vector<float> ordered_weight_;    // [E]
  std::vector<float> share_;             // [E / nodes] weight / count
  std::vector<int32_t> count_;           // [E / nodes]
  std::vector<int32_t> slot_expert_;     // [S / nodes] position in the node's experts
  std::vector<int32_t> slot_rank_;       // [S / nodes]
  std::vector<float> slot_load_;         // [S / nodes]
};

// The float32 row sum of torch on CPU, addition by addition: expert group sums decide the packing
// of groups on nodes, so the last bit counts once sums exceed 2^24.

// Sum of one contiguous row in the order torch 1.13 adds it (AVX2 build: 8 EP groups, 4
// accumulators, a cascade of 4 levels); 0 for an empty row. NaN and infinities propagate. cost:
// O(n).
float TorchSum(std::span<const float> row);

}  // namespace eplb
