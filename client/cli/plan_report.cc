#include "client/cli/plan_report.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"

#include "placement/bound.h"
#include "placement/status_macros.h"
#include "proto/wire/json_value.h"
#include "proto/wire/placement_json.h"

namespace eplb::cli {
namespace {

// The shortest text that reads back as the same double.
std::string Number(double value) {
  char digits[32];
  const auto end = std::to_chars(std::begin(digits), std::end(digits), value).ptr;
  return {digits, end};
}

std::string Array(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) {
    if (text.size() > 1) text += ',';
    text += Number(value);
  }
  return text + "]";
}

void FillGaps(PlanReport& report) {
  double sum = 0;
  int64_t layers_with_load = 0;
  for (size_t layer = 0; layer < report.bounds.size(); ++layer) {
    const double peak = report.after.max_gpu_load[layer];
    // A placement that meets its bound may evaluate some last bits below it; what a layer reached
    // bounds nothing from below, so the smaller of the two is still proved.
    report.bounds[layer] = std::min(report.bounds[layer], peak);
    const double gap = report.bounds[layer] > 0 ? peak / report.bounds[layer] - 1 : 0;
    report.gaps.push_back(gap);
    report.gap_max = std::max(report.gap_max, gap);
    if (peak > 0) {
      sum += gap;
      ++layers_with_load;
    }
  }
  if (layers_with_load > 0) report.gap_mean = sum / static_cast<double>(layers_with_load);
}

}  // namespace

absl::StatusOr<PlanReport> MakePlanReport(std::string policy, const Load& load,
                                          const Placement& placement,
                                          const std::optional<Placement>& previous) {
  EPLB_ASSIGN_OR_RETURN(Evaluation after, Evaluate(load, placement));
  const Placement start = previous.value_or(Placement::Static(placement.topology()));
  EPLB_ASSIGN_OR_RETURN(Evaluation before, Evaluate(load, start));
  PlanReport report{.policy = std::move(policy),
                    .placement = placement,
                    .after = std::move(after),
                    .before = std::move(before),
                    .has_previous = previous.has_value(),
                    .bounds = {},
                    .gaps = {},
                    .duplicates = CountDuplicates(placement),
                    .moves = {}};
  EPLB_ASSIGN_OR_RETURN(report.bounds, LowerBounds(load, placement.topology()));
  FillGaps(report);
  if (previous.has_value()) {
    EPLB_ASSIGN_OR_RETURN(report.moves, SummariseMoves(*previous, placement));
  }
  return report;
}

std::string PlanReportToJson(const PlanReport& report) {
  const Evaluation& after = report.after;
  return absl::StrCat(
      "{\"policy\":", wire::JsonQuote(report.policy),
      ",\"placement\":", wire::PlacementToJson(report.placement),
      ",\"balancedness\":{\"formula\":\"mean(gpu load)/max(gpu load)\",\"mean\":",
      Number(after.mean_balancedness), ",\"min\":", Number(after.min_balancedness),
      ",\"per_layer\":", Array(after.balancedness),
      "},\"max_gpu_load_per_layer\":", Array(after.max_gpu_load),
      ",\"bound\":{\"max_gpu_load_per_layer\":", Array(report.bounds),
      ",\"gap_per_layer\":", Array(report.gaps), ",\"gap_mean\":", Number(report.gap_mean),
      ",\"gap_max\":", Number(report.gap_max), "},\"duplicates\":", report.duplicates,
      ",\"moves\":{\"transfers\":", report.moves.transfers,
      ",\"slots_changed\":", report.moves.slots_changed,
      ",\"max_per_gpu\":", report.moves.max_per_gpu, ",\"cross_node\":", report.moves.cross_node,
      "},\"solve_seconds\":", Number(report.solve_seconds), "}\n");
}

}  // namespace eplb::cli
