// The table form of a sweep.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/links.h"
#include "client/cli/sweep.h"
#include "client/cli/text.h"
#include "placement/rebalance.h"

namespace eplb::cli {
namespace {

constexpr int kMaxBar = 40;   // columns
constexpr int kFigures = 54;  // columns of the figures
constexpr int kPriced = 82;   // likewise, with prices
constexpr int kLeastBar = 10;

double StepSeconds(const SweepRow& row) { return Finite(row.token_seconds + row.replica_seconds); }

}  // namespace

std::string SweepToTable(const SweepOptions& options, const Topology& smallest,
                         const std::vector<SweepRow>& rows, const Terminal& terminal) {
  const bool priced = options.costs.training;
  std::string text = absl::StrCat(
      Paint(terminal, Colour::kBold, absl::StrCat("Sweep by ", options.frame.policy)), "\n",
      Wrapped(absl::StrCat(ShapeText(smallest), ", and more slots"), terminal.width, 2), "\n\n");
  Table table{.heading = {"slots", "extra/GPU", "balancedness", "worst layer", "gap"},
              .right = std::vector<bool>(5, true),
              .rows = {}};
  if (priced) {
    table.heading.insert(table.heading.end(), {"tokens", "replicas", "step"});
    table.right.resize(8, true);
  }
  const int bar = std::min(kMaxBar, terminal.width - (priced ? kPriced : kFigures));
  if (bar >= kLeastBar) {
    table.heading.emplace_back("");
    table.right.push_back(false);
  }
  for (const SweepRow& row : rows) {
    std::vector<std::string> cells = {
        absl::StrCat(row.slots), absl::StrFormat("%.4g", row.extra_slots_per_gpu),
        absl::StrFormat("%.4f", row.balancedness_mean),
        absl::StrFormat("%.4f", row.balancedness_min), Percent(row.bound_gap_mean)};
    if (priced) {
      for (const double seconds : {row.token_seconds, row.replica_seconds, StepSeconds(row)}) {
        cells.push_back(SecondsText(seconds));
      }
    }
    if (bar >= kLeastBar) cells.push_back(Bar(row.balancedness_mean, 1, bar, terminal));
    table.rows.push_back(std::move(cells));
  }
  text += FormatTable(table, terminal);
  std::string note = "balancedness = mean / max GPU load; gap = above the proved lower bound.";
  if (priced) {
    const SweepRow& best = *std::min_element(
        rows.begin(), rows.end(),
        [](const SweepRow& a, const SweepRow& b) { return StepSeconds(a) < StepSeconds(b); });
    absl::StrAppend(&note, " A training step is shortest with ", Counted(best.slots, "slot"), ": ",
                    SecondsText(best.token_seconds), " for tokens on the fullest GPUs, ",
                    SecondsText(best.replica_seconds), " for replicas of ",
                    BytesText(options.costs.weight_bytes.value_or(options.costs.expert_bytes)),
                    " over links of ", LinksText(options.costs), ".");
  }
  return absl::StrCat(text, "\n", Wrapped(note, terminal.width, 2), "\n");
}

}  // namespace eplb::cli
