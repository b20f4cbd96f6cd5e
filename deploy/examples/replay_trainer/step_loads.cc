// Cuts a recorded trace into steps and ranks, and measures what the GPUs get of a step.
#include "deploy/examples/replay_trainer/step_loads.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/figure_mean.h"

namespace eplb {

namespace {

// Part `index` of `parts` nearly equal parts of `count`; the parts sum to `count`. Division first,
// so nothing overflows.
int64_t Part(int64_t count, int64_t index, int64_t parts) {
  return count / parts + (index < count % parts ? 1 : 0);
}

}  // namespace

absl::StatusOr<StepLoads> StepLoads::Make(std::vector<RecordedWindow> windows) {
  if (windows.empty()) return InvalidInput("the trace has no window");
  for (size_t i = 0; i < windows.size(); ++i) {
    const RecordedWindow& window = windows[i];
    const int64_t expected = i == 0 ? window.first_step : windows[i - 1].last_step + 1;
    if (window.first_step != expected || window.last_step < window.first_step) {
      return InvalidInput("trace window ", i, " covers steps ", window.first_step, "..",
                          window.last_step, ", expected it to begin at ", expected);
    }
    if (window.counts.rows() != windows[0].counts.rows() ||
        window.counts.cols() != windows[0].counts.cols()) {
      return InvalidInput("trace window ", i, " is ", window.counts.rows(), " layers x ",
                          window.counts.cols(), " experts, window 0 is ", windows[0].counts.rows(),
                          " x ", windows[0].counts.cols());
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

std::vector<double> OwnGpuLoads(const LoadMatrix& total, const PlacementView& placement) {
  std::vector<double> loads;
  for (int32_t layer = 0; layer < placement.num_layers; ++layer) {
    double tokens = 0;
    for (int32_t slot = 0; slot < placement.num_local_slots; ++slot) {
      const int64_t cell = int64_t{layer} * placement.num_slots + placement.first_local_slot + slot;
      const int32_t expert = placement.physical_to_logical_map[static_cast<size_t>(cell)];
      const int64_t count_cell = int64_t{layer} * placement.num_experts + expert;
      tokens += static_cast<double>(total(layer, expert)) /
                placement.logical_replica_count[static_cast<size_t>(count_cell)];
    }
    loads.push_back(tokens);
  }
  return loads;
}

MeasuredLoads MeasureLoads(std::span<const int64_t> gathered, int32_t num_layers,
                           int32_t world_size, const SlowRank& slow) {
  FigureMean balancedness;
  double peaks = 0, means = 0, peak_tokens = 0;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    double peak = 0, slowest = 0, total = 0;
    for (int32_t rank = 0; rank < world_size; ++rank) {
      const int64_t cell = int64_t{rank} * num_layers + layer;
      const auto tokens = std::bit_cast<double>(gathered[static_cast<size_t>(cell)]);
      peak = std::max(peak, tokens);
      slowest = std::max(slowest, tokens * slow.FactorOf(rank));
      total += tokens;
    }
    if (peak <= 0) continue;
    balancedness.Add(std::min(1.0, total / world_size / peak));
    peaks += slowest;
    peak_tokens += peak;
    means += total / world_size;
  }
  if (!balancedness.Value()) return {};
  return {balancedness.Value(), peaks / means, peak_tokens};
}

absl::StatusOr<std::vector<int64_t>> GatherNumbers(ControlChannel& channel,
                                                   std::span<const int64_t> values,
                                                   absl::Duration timeout) {
  constexpr size_t kMaxValues = 64;  // values of one AllReduceMin
  // Cells of other ranks hold the largest number, so the minimum of a cell is its owner's value.
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
