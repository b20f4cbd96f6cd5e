#include "client/cli/formats/load_window.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/quantity.h"

namespace eplb {
namespace {

// The windows that a rule looks at.
std::span<const LoadWindow> InForce(std::span<const LoadWindow> windows, const WindowRule& rule) {
  return rule.kind == WindowRule::Kind::kLast && !windows.empty() ? windows.last(1) : windows;
}

std::optional<double> DecayOf(const WindowRule& rule) {
  if (rule.kind != WindowRule::Kind::kEma) return std::nullopt;
  return rule.decay;
}

}  // namespace

absl::StatusOr<LoadFile> LoadFileOf(absl::StatusOr<std::vector<LoadWindow>> windows,
                                    TableKind table) {
  if (!windows.ok()) return windows.status();
  return LoadFile{.windows = *std::move(windows), .table = table};
}

absl::Status CheckFollows(const LoadWindow& before, const LoadWindow& window) {
  if (window.first_step <= before.last_step) {
    return InvalidInput("first_step is ", window.first_step, ", the window before covers steps ",
                        before.first_step, "..", before.last_step,
                        "; windows must be oldest first and not overlap");
  }
  if (window.load.num_layers() == before.load.num_layers() &&
      window.load.num_experts() == before.load.num_experts()) {
    return absl::OkStatus();
  }
  return InvalidInput("load has ", window.load.num_layers(), " layers x ",
                      window.load.num_experts(), " experts, the window before has ",
                      before.load.num_layers(), " x ", before.load.num_experts());
}

absl::StatusOr<WindowRule> ParseWindowRule(std::string_view text) {
  if (text == "sum") return WindowRule{.kind = WindowRule::Kind::kSum};
  if (text == "last") return WindowRule{.kind = WindowRule::Kind::kLast};
  constexpr std::string_view kPrefix = "ema:";
  if (text.starts_with(kPrefix)) {
    const std::optional<double> decay = ParseFraction(text.substr(kPrefix.size()));
    if (decay && *decay >= 0 && *decay <= 1) {
      return WindowRule{.kind = WindowRule::Kind::kEma, .decay = *decay};
    }
  }
  return InvalidInput("window rule is \"", std::string(text),
                      "\", expected sum, last or ema:A with 0 <= A <= 1");
}

absl::StatusOr<Load> CombineWindows(std::span<const LoadWindow> windows, const WindowRule& rule) {
  std::vector<const Load*> loads;
  for (const LoadWindow& window : InForce(windows, rule)) loads.push_back(&window.load);
  return CombineLoads(loads, DecayOf(rule));
}

std::vector<Load> BatchesOf(std::span<const LoadWindow> windows, const WindowRule& rule) {
  std::vector<Load> batches;
  for (const LoadWindow& window : InForce(windows, rule)) batches.push_back(window.load);
  return batches;
}

absl::Status CheckBatches(std::span<const LoadWindow> windows, int64_t most) {
  for (size_t i = 0; i < windows.size(); ++i) {
    const Load& load = windows[i].load;
    if (!load.is_counts()) continue;  // an estimate is split into fractions, without a limit
    for (int32_t layer = 0; layer < load.num_layers(); ++layer) {
      const int64_t sum = load.counts().row(layer).sum();  // at most 2^63-1, as Load checks
      if (sum <= most) continue;
      const int64_t line = windows[i].line;
      return InvalidInput(line > 0 ? absl::StrCat("line ", line) : absl::StrCat("window ", i),
                          ": layer ", layer, " has ", sum,
                          " tokens, a batch to split exactly has at most ", most);
    }
  }
  return absl::OkStatus();
}

}  // namespace eplb
