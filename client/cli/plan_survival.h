// The experts that a plan covers against a loss (`eplbctl plan --survive 1`), and the cost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/plan_loads.h"
#include "client/cli/terminal.h"
#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "placement/search/survival.h"

namespace eplb::cli {

struct SurvivalFigures {
  Site site = Site::kGpu;
  double most_cost = 0;
  int32_t num_experts = 0;                        // experts of a layer
  std::vector<std::vector<int32_t>> not_covered;  // [L], the hottest first
  // Share of the tokens that experts on two sites get, mean over layers; absent without load.
  std::optional<double> covered_tokens;
  // Balancedness without the demand less that with it; of several loads 1 / objective.
  std::optional<double> mean_cost;
  std::optional<double> max_cost;  // largest of a layer
};

// without, with: the plans without the demand and with it.
absl::StatusOr<SurvivalFigures> MakeSurvivalFigures(const PlannedLoads& loads,
                                                    const GpuSpeeds& speeds,
                                                    const SurvivalOptions& options,
                                                    const Placement& without,
                                                    const Placement& with);

// A JSON object.
std::string SurvivalToJson(const SurvivalFigures& figures);
// A paragraph.
std::string SurvivalText(const SurvivalFigures& figures, const Terminal& terminal);

// [{"layer": 3, "experts": [7, 2]}, ..] of the layers [L] that have experts.
std::string ExpertsToJson(const std::vector<std::vector<int32_t>>& layers);
// The experts of all layers.
int64_t CountExperts(const std::vector<std::vector<int32_t>>& layers);

}  // namespace eplb::cli
