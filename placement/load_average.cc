#include "placement/load_average.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"

namespace eplb {
namespace {

absl::Status CheckSameShape(std::span<const Load* const> windows) {
  if (windows.empty()) return absl::InvalidArgumentError("there is no window");
  const Load& first = *windows.front();
  for (size_t i = 1; i < windows.size(); ++i) {
    const Load& load = *windows[i];
    if (load.num_layers() == first.num_layers() && load.num_experts() == first.num_experts()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("window ", i, " has ", load.num_layers(), " layers x ", load.num_experts(),
                     " experts, window 0 has ", first.num_layers(), " x ", first.num_experts()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Load> SumOfCounts(std::span<const Load* const> windows) {
  LoadMatrix sum = windows.front()->counts();
  for (const Load* window : windows.subspan(1)) {
    const LoadMatrix& counts = window->counts();
    for (Eigen::Index i = 0; i < sum.size(); ++i) {
      if (__builtin_add_overflow(sum.data()[i], counts.data()[i], &sum.data()[i])) {
        return absl::InvalidArgumentError(
            absl::StrCat("the sum over windows of layer ", i / sum.cols(), " expert ",
                         i % sum.cols(), " is above 2^63-1; take the last or an average (ema)"));
      }
    }
  }
  return Load::FromCounts(std::move(sum));
}

}  // namespace

absl::StatusOr<Load> CombineLoads(std::span<const Load* const> windows,
                                  std::optional<double> decay) {
  EPLB_RETURN_IF_ERROR(CheckSameShape(windows));
  if (windows.size() == 1) return *windows.front();
  const bool all_counts = std::all_of(windows.begin(), windows.end(),
                                      [](const Load* window) { return window->is_counts(); });
  if (!decay.has_value() && all_counts) return SumOfCounts(windows);
  RealMatrix estimate = windows.front()->ToDouble();
  for (const Load* window : windows.subspan(1)) {
    if (decay.has_value()) {
      estimate = *decay * estimate + (1 - *decay) * window->ToDouble();
    } else {
      estimate += window->ToDouble();
    }
  }
  return Load::FromEstimates(std::move(estimate));
}

double CombineSteps(std::span<const double> num_steps, std::optional<double> decay) {
  double combined = num_steps.front();
  for (const double steps : num_steps.subspan(1)) {
    combined = decay.has_value() ? *decay * combined + (1 - *decay) * steps : combined + steps;
  }
  return combined;
}

}  // namespace eplb
