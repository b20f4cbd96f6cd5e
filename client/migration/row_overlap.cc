#include "client/migration/row_overlap.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

struct RowSpan {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  const ExpertTensor* tensor = nullptr;
  int32_t local_slot = 0;
};

}  // namespace

absl::Status CheckRowsApart(std::span<const ExpertTensor> tensors) {
  std::vector<RowSpan> rows;
  for (const ExpertTensor& tensor : tensors) {
    const auto base = reinterpret_cast<uintptr_t>(tensor.base);
    for (int32_t slot = 0; slot < tensor.num_rows; ++slot) {
      const uintptr_t begin = base + static_cast<uintptr_t>(slot * tensor.row_stride);
      rows.push_back({.begin = begin,
                      .end = begin + static_cast<uintptr_t>(tensor.row_bytes),
                      .tensor = &tensor,
                      .local_slot = slot});
    }
  }
  std::sort(rows.begin(), rows.end(), [](const RowSpan& a, const RowSpan& b) {
    return std::tie(a.begin, a.tensor->name) < std::tie(b.begin, b.tensor->name);
  });
  // Rows before the first shared byte end in the order in which they begin.
  for (size_t i = 1; i < rows.size(); ++i) {
    const RowSpan& first = rows[i - 1];
    const RowSpan& second = rows[i];
    if (second.begin >= first.end) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor \"", second.tensor->name, "\": local slot ", second.local_slot, " shares ",
        std::min(first.end, second.end) - second.begin, " bytes with local slot ", first.local_slot,
        " of \"", first.tensor->name,
        "\"; each byte of an expert is registered once (docs/registering-tensors.md)"));
  }
  return absl::OkStatus();
}

}  // namespace eplb
