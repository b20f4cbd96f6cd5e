#include "placement/policies/torch_order.h"

#include <algorithm>
#include <array>
#include <utility>

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

}  // namespace eplb
