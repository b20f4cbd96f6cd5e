#include "client/cli/plan_survival.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "client/cli/plan_report.h"
#include "client/cli/text.h"
#include "placement/evaluate.h"
#include "placement/figure_mean.h"
#include "placement/search/scenario_evaluation.h"

namespace eplb::cli {
namespace {

using LayerBalance = std::vector<std::optional<double>>;

// [L], balancedness; of several loads 1 / objective.
absl::StatusOr<LayerBalance> BalanceOf(const PlannedLoads& loads, const GpuSpeeds& speeds,
                                       const Placement& placement) {
  if (loads.scenarios.size() < 2) {
    EPLB_ASSIGN_OR_RETURN(Evaluation one, Evaluate(loads.load, placement, {.speeds = &speeds}));
    return std::move(one.balancedness);
  }
  EPLB_ASSIGN_OR_RETURN(
      const ScenarioEvaluation all,
      EvaluateScenarios(loads.scenarios, loads.objective, placement, SplitMode::kEqual, &speeds));
  LayerBalance balance;
  for (const auto& one : all.objective) balance.push_back(one ? std::optional(1 / *one) : one);
  return balance;
}

std::optional<double> CoveredTokens(const Load& load,
                                    const std::vector<std::vector<int32_t>>& not_covered) {
  const RealMatrix shares = NormalisedLayers(load);
  FigureMean covered;
  for (size_t layer = 0; layer < not_covered.size(); ++layer) {
    const auto row = shares.row(static_cast<Eigen::Index>(layer));
    if ((row == 0).all()) continue;
    double share = 1;
    for (const int32_t expert : not_covered[layer]) share -= row(expert);
    covered.Add(std::max(share, 0.0));
  }
  return covered.Value();
}

const char* SiteName(Site site) { return site == Site::kNode ? "node" : "GPU"; }

}  // namespace

absl::StatusOr<SurvivalFigures> MakeSurvivalFigures(const PlannedLoads& loads,
                                                    const GpuSpeeds& speeds,
                                                    const SurvivalOptions& options,
                                                    const Placement& without,
                                                    const Placement& with) {
  SurvivalFigures figures{.site = options.site,
                          .most_cost = options.most_cost,
                          .num_experts = with.topology().num_experts(),
                          .not_covered = ExpertsOnOneSite(loads.load, with, options.site)};
  figures.covered_tokens = CoveredTokens(loads.load, figures.not_covered);
  EPLB_ASSIGN_OR_RETURN(const LayerBalance before, BalanceOf(loads, speeds, without));
  EPLB_ASSIGN_OR_RETURN(const LayerBalance after, BalanceOf(loads, speeds, with));
  FigureMean mean;
  for (size_t layer = 0; layer < before.size(); ++layer) {
    if (!before[layer] || !after[layer]) continue;
    const double cost = *before[layer] - *after[layer];
    mean.Add(cost);
    figures.max_cost = std::max(figures.max_cost.value_or(cost), cost);
  }
  figures.mean_cost = mean.Value();
  return figures;
}

int64_t CountExperts(const std::vector<std::vector<int32_t>>& layers) {
  int64_t count = 0;
  for (const std::vector<int32_t>& experts : layers) count += std::ssize(experts);
  return count;
}

std::string ExpertsToJson(const std::vector<std::vector<int32_t>>& layers) {
  std::string text;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (layers[layer].empty()) continue;
    absl::StrAppend(&text, text.empty() ? "" : ",", "{\"layer\":", layer, ",\"experts\":[",
                    absl::StrJoin(layers[layer], ","), "]}");
  }
  return absl::StrCat("[", text, "]");
}

std::string SurvivalToJson(const SurvivalFigures& figures) {
  const int64_t not_covered = CountExperts(figures.not_covered);
  const int64_t all = std::ssize(figures.not_covered) * figures.num_experts;
  return absl::StrCat(
      "{\"losses\":1,\"domain\":\"", figures.site == Site::kNode ? "node" : "gpu",
      "\",\"num_covered\":", all - not_covered, ",\"num_not_covered\":", not_covered,
      ",\"covered_tokens\":", Number(figures.covered_tokens),
      ",\"balancedness_cost\":{\"mean\":", Number(figures.mean_cost),
      ",\"max\":", Number(figures.max_cost), ",\"limit\":", Number(figures.most_cost),
      "},\"not_covered\":", ExpertsToJson(figures.not_covered), "}");
}

std::string SurvivalText(const SurvivalFigures& figures, const Terminal& terminal) {
  size_t fewest = std::numeric_limits<size_t>::max();
  size_t most = 0;
  for (const std::vector<int32_t>& experts : figures.not_covered) {
    const size_t covered = static_cast<size_t>(figures.num_experts) - experts.size();
    fewest = std::min(fewest, covered);
    most = std::max(most, covered);
  }
  const char* const site = SiteName(figures.site);
  std::string text = absl::StrCat(
      "Against the loss of a ", site, ", ", fewest, fewest < most ? absl::StrCat("-", most) : "",
      " of the ", figures.num_experts, " experts of a layer are on two ", site, "s",
      figures.covered_tokens ? absl::StrCat("; ", Percent(*figures.covered_tokens),
                                            " of the tokens on average go to them")
                             : "",
      ". Not covered: ", Counted(CountExperts(figures.not_covered), "expert"), " in all layers.");
  if (figures.mean_cost.has_value()) {
    const auto cost = [](double value) {  // without the sign of a cost that rounds to 0
      return absl::StrFormat("%.4f", std::abs(value) < 5e-5 ? 0 : value);
    };
    absl::StrAppend(&text, " That costs ", cost(*figures.mean_cost),
                    " of balancedness on average, ", cost(*figures.max_cost), " at most in a layer",
                    absl::StrFormat(" (limit %g).", figures.most_cost));
  }
  return Paragraph(text, terminal);
}

}  // namespace eplb::cli
