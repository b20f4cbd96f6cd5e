#include "client/trainer/step_loads.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

// Part `index` of `parts` nearly equal parts of `count`; the parts sum to `count`. Division first,
// so nothing overflows.
int64_t Part(int64_t count, int64_t index, int64_t parts) {
  return count / parts + (index < count % parts ? 1 : 0);
}

}  // namespace

absl::StatusOr<StepLoads> StepLoads::Make(std::vector<RecordedWindow> windows) {
  if (windows.empty()) return absl::InvalidArgumentError("the trace has no window");
  for (size_t i = 0; i < windows.size(); ++i) {
    const RecordedWindow& window = windows[i];
    const int64_t expected = i == 0 ? window.first_step : windows[i - 1].last_step + 1;
    if (window.first_step != expected || window.last_step < window.first_step) {
      return absl::InvalidArgumentError(absl::StrCat("trace window ", i, " covers steps ",
                                                     window.first_step, "..", window.last_step,
                                                     ", expected it to begin at ", expected));
    }
    if (window.counts.rows() != windows[0].counts.rows() ||
        window.counts.cols() != windows[0].counts.cols()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "trace window ", i, " is ", window.counts.rows(), " layers x ", window.counts.cols(),
          " experts, window 0 is ", windows[0].counts.rows(), " x ", windows[0].counts.cols()));
    }
  }
  return StepLoads(std::move(windows));
}

int64_t StepLoads::num_steps() const {
  return windows_.back().last_step - windows_.front().first_step + 1;
}

LoadMatrix StepLoads::Total(int64_t step) const {
  const int64_t recorded = windows_.front().first_step + step % num_steps();
  const auto window = std::lower_bound(
      windows_.begin(), windows_.end(), recorded,
      [](const RecordedWindow& candidate, int64_t wanted) { return candidate.last_step < wanted; });
  const int64_t index = recorded - window->first_step;
  const int64_t parts = window->last_step - window->first_step + 1;
  return window->counts.unaryExpr([&](int64_t count) { return Part(count, index, parts); });
}

LoadMatrix StepLoads::OfRank(const LoadMatrix& total, int32_t rank, int32_t world_size) {
  LoadMatrix counts = total;
  for (Eigen::Index layer = 0; layer < counts.rows(); ++layer) {
    for (Eigen::Index expert = 0; expert < counts.cols(); ++expert) {
      // Rotated by layer and expert, so that the left-over tokens do not all go to rank 0.
      const int64_t turn = (rank + layer + expert) % world_size;
      counts(layer, expert) = Part(total(layer, expert), turn, world_size);
    }
  }
  return counts;
}

}  // namespace eplb
