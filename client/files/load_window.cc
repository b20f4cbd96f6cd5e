#include "client/files/load_window.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"

namespace eplb {
namespace {

absl::Status CheckSameShape(std::span<const LoadWindow> windows) {
  if (windows.empty()) return absl::InvalidArgumentError("there is no window");
  const Load& first = windows.front().load;
  for (size_t i = 1; i < windows.size(); ++i) {
    const Load& load = windows[i].load;
    if (load.num_layers() == first.num_layers() && load.num_experts() == first.num_experts()) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("window ", i, " has ", load.num_layers(), " layers x ", load.num_experts(),
                     " experts, window 0 has ", first.num_layers(), " x ", first.num_experts()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Load> SumOfCounts(std::span<const LoadWindow> windows) {
  LoadMatrix sum = windows.front().load.counts();
  for (const LoadWindow& window : windows.subspan(1)) {
    const LoadMatrix& counts = window.load.counts();
    for (Eigen::Index i = 0; i < sum.size(); ++i) {
      if (__builtin_add_overflow(sum.data()[i], counts.data()[i], &sum.data()[i])) {
        return absl::InvalidArgumentError(
            absl::StrCat("the sum over windows of layer ", i / sum.cols(), " expert ",
                         i % sum.cols(), " is above 2^63-1; use --window last or ema"));
      }
    }
  }
  return Load::FromCounts(std::move(sum));
}

}  // namespace

absl::StatusOr<WindowRule> ParseWindowRule(std::string_view text) {
  if (text == "sum") return WindowRule{.kind = WindowRule::Kind::kSum};
  if (text == "last") return WindowRule{.kind = WindowRule::Kind::kLast};
  constexpr std::string_view kPrefix = "ema:";
  double decay = 0;
  if (text.starts_with(kPrefix) &&
      absl::SimpleAtod({text.data() + kPrefix.size(), text.size() - kPrefix.size()}, &decay) &&
      decay >= 0 && decay <= 1) {
    return WindowRule{.kind = WindowRule::Kind::kEma, .decay = decay};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "window rule is \"", std::string(text), "\", expected sum, last or ema:A with 0 <= A <= 1"));
}

absl::StatusOr<Load> CombineWindows(std::span<const LoadWindow> windows, const WindowRule& rule) {
  EPLB_RETURN_IF_ERROR(CheckSameShape(windows));
  if (windows.size() == 1 || rule.kind == WindowRule::Kind::kLast) return windows.back().load;
  const bool all_counts = std::all_of(windows.begin(), windows.end(), [](const LoadWindow& window) {
    return window.load.is_counts();
  });
  if (rule.kind == WindowRule::Kind::kSum && all_counts) return SumOfCounts(windows);
  RealMatrix estimate = windows.front().load.ToDouble();
  for (const LoadWindow& window : windows.subspan(1)) {
    if (rule.kind == WindowRule::Kind::kSum) {
      estimate += window.load.ToDouble();
    } else {
      estimate = rule.decay * estimate + (1 - rule.decay) * window.load.ToDouble();
    }
  }
  return Load::FromEstimates(std::move(estimate));
}

}  // namespace eplb
