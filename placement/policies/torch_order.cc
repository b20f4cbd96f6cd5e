#include "placement/policies/torch_order.h"

#include <algorithm>
#include <array>

namespace eplb {

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

void DescendingOrder::SortStable(size_t count) {
  std::sort(entries_.begin(), entries_.begin() + static_cast<ptrdiff_t>(count));
}

}  // namespace eplb
