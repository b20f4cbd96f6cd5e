#include "client/cli/held_out.h"

#include "absl/strings/str_cat.h"

namespace eplb::cli {
namespace {

std::string WindowsText(size_t first, size_t end) {
  if (end - first == 1) return absl::StrCat("window ", first);
  return absl::StrCat("windows ", first, "..", end - 1);
}

}  // namespace

HeldOut HoldOut(std::span<const LoadWindow> windows) {
  const size_t later = windows.size() / 2;
  HeldOut result{.planned = windows.first(windows.size() - later), .out_of_sample = later > 0};
  const auto scored = later > 0 ? windows.last(later) : windows;
  for (const LoadWindow& window : result.planned) {
    result.planned_on_tokens = result.planned_on_tokens || window.load.has_tokens();
  }
  for (const LoadWindow& window : scored) {
    result.scored_on_tokens = result.scored_on_tokens || window.load.has_tokens();
    result.scored.push_back(window.load);
    result.scored_steps += static_cast<double>(window.last_step - window.first_step) + 1;
  }
  return result;
}

std::string ScoredOnText(const HeldOut& held_out) {
  const size_t planned = held_out.planned.size();
  constexpr char kWithout[] = " (no tokens)";
  return absl::StrCat("Planned on ", WindowsText(0, planned),
                      held_out.planned_on_tokens ? "" : kWithout, ", scored on ",
                      WindowsText(planned, planned + held_out.scored.size()),
                      held_out.scored_on_tokens ? "" : kWithout);
}

}  // namespace eplb::cli
