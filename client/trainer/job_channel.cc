#include "client/trainer/job_channel.h"

#include <algorithm>
#include <limits>

#include "placement/status_macros.h"

namespace eplb {

absl::StatusOr<std::vector<int64_t>> AllGather(ControlChannel& channel,
                                               std::span<const int64_t> values,
                                               absl::Duration timeout) {
  constexpr size_t kMaxValues = 64;  // of one AllReduceMin
  // Everybody else's cells hold the largest number, so the minimum of a cell is its owner's value.
  std::vector<int64_t> cells(values.size() * static_cast<size_t>(channel.world_size()),
                             std::numeric_limits<int64_t>::max());
  std::copy(values.begin(), values.end(),
            cells.begin() + static_cast<std::ptrdiff_t>(values.size()) * channel.rank().value);
  for (size_t first = 0; first < cells.size(); first += kMaxValues) {
    const auto slice = std::span(cells).subspan(first, std::min(kMaxValues, cells.size() - first));
    EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> minima, channel.AllReduceMin(slice, timeout));
    std::copy(minima.begin(), minima.end(), slice.begin());
  }
  return cells;
}

}  // namespace eplb
