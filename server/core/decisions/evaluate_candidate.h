// Decision on a candidate within the limits of the ranks: staging rows and pauses.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/decision/cost.h"
#include "placement/decision/prediction.h"
#include "placement/decision/rebalance.h"
#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"
#include "server/core/state/chunking.h"
#include "server/core/values/record.h"

namespace eplb::core {

struct CandidateInput {
  const Load& load;      // expected tokens of `num_steps` steps
  double num_steps = 1;  // > 0
  int64_t first_step = 0;
  int64_t last_step = 0;
  const Placement& incumbent;
  const Placement& candidate;  // aligned to `incumbent`
  double min_gain = 0;         // least fall of the peak load on `load`, as a fraction of it
  int64_t staging_rows = 0;    // rows of a layer, of the rank that has fewest
  BoundaryLimits limits;
  MigrationOptions migration;
  Costs costs;  // but for the bytes of an expert, which `migration` has
  // Prices of a decision; null: `costs`. Only bandwidths in `costs` leave out layers, because an
  // assumed price that did would never be replaced by a measured one.
  const Costs* prices = nullptr;
  const LearnedGate* learned = nullptr;  // see RebalanceInput, and
  const PredictionRecord* predictions = nullptr;
  double measured_balancedness = 0;   // balancedness of the windows of `load`; 0: not known
  bool force = false;                 // take what the ranks can, whether it pays or not
  const GpuSpeeds* speeds = nullptr;  // null: all equal; otherwise GPU loads are tokens / speed
  // Split that the run registered, and with kBatch the windows whose sum is `load`.
  SplitMode split = SplitMode::kEqual;
  std::span<const Load> recent = {};
  const char* load_of = "these steps";  // see RebalanceInput
};

struct CandidateDecision {
  explicit CandidateDecision(const Placement& incumbent) : target(incumbent) {}

  std::vector<Chunk> chunks;  // empty: keep the incumbent
  std::string reason;
  std::string left_out;  // which layers need more staging than the ranks have; empty when none
  std::string too_long;  // which layers would need a longer boundary than allowed; empty when none
  // Price of the chunks. Absent without prices, and while a bandwidth is assumed.
  std::optional<double> migration_seconds = std::nullopt;
  // The figures below are of the candidate without the layers left out.
  int64_t transfers = 0;
  double balancedness_before = 0;    // 0 if the load has no tokens, and
  double balancedness_computed = 0;  // 0 if the load has no tokens
  Prediction prediction;      // prediction for later loads; without a record the computed figure
  Placement target;           // the candidate without those layers
  double peak_fall = 0;       // on that load, a fraction
  std::vector<double> falls;  // [L], fall of each layer's peak, tokens a step
  // Over the horizon; absent likewise.
  std::optional<double> net_gain_seconds = std::nullopt;
  v1::Plan scenarios = {};  // see ScenarioFiguresOf; empty for one load
};

// Decides by EvaluateRebalance. Layers that need more rows of staging on a GPU than the ranks have,
// or more time than max_pause_seconds, on a link or as measured, keep their slots. errors:
// InvalidArgument when load and placements differ in shape.
absl::StatusOr<CandidateDecision> EvaluateCandidate(const CandidateInput& question);

}  // namespace eplb::core
