// torch's `sort(descending=True)` of float32 values, with its two tie orders.
#ifndef EPLB_PLACEMENT_POLICIES_TORCH_ORDER_H_
#define EPLB_PLACEMENT_POLICIES_TORCH_ORDER_H_

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace eplb {

// Which of two equal values comes first. The reference leaves it open and replicas of one expert
// are always equal.
enum class TieBreak {
  kStable,  // the lower index: documented, the same everywhere
  kCompat,  // what torch 1.13 does on CPU: libstdc++'s std::sort over (value, index) pairs
};

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

}  // namespace eplb

#endif  // EPLB_PLACEMENT_POLICIES_TORCH_ORDER_H_
