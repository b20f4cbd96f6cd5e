// Decision whether a rebalance pays, with its reason as one sentence. The daemon and `eplbctl
// replay` share it.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/decision/cost.h"
#include "placement/decision/prediction.h"
#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Part of the time without any move that a job may lose by moves that turn out to be wrong.
inline constexpr double kAllowance = 0.003;

// Findings of a job's back-test (placement/backtest) about the gains that the candidate in use
// predicts.
struct LearnedGate {
  bool in_use = true;        // false: no move is proved to be better than doing nothing
  bool returns = false;      // the candidate is the placement that the back-test began with
  double horizon_steps = 0;  // steps that a gain counts over
  double times = 1;          // a gain must be this many times its price; more while little is known
  int64_t windows = 0;       // windows that this was learned from

  struct Shown {
    double realized = 0.5;  // share of predicted gains that later windows showed, 0..1
    // Peak load per step that the candidate's own placements certainly save against the current
    // one. That much of a gain is believed whatever became of other predictions.
    double proved_tokens = 0;
    // Seconds that they certainly saved since the current placement took effect; 0 if the candidate
    // spent more meanwhile. Once they exceed a migration, waiting has cost as much as the move
    // would have (ski rental).
    double missed_seconds = 0;
  };
  Shown shown;
  // Replaces `shown` for a migration above the budget: more of the scatter is taken off, because
  // the candidate in use is the luckiest of many.
  Shown sure;
  // Seconds that the job may still lose; infinite unless its moves lost more than they saved.
  double budget_seconds = std::numeric_limits<double>::infinity();
};

// Returns the gate with its horizon cut to costs.horizon_steps.
LearnedGate CappedBy(const Costs& costs, LearnedGate gate);

// Seconds of a move: gain and replicas per step, migration once.
struct GainPrice {
  double predicted = 0;
  double replicas = 0;  // price of the candidate's replicas beyond the incumbent's
  double migration = 0;
  double token_seconds = 1;
};
// Seconds that the believed gain, less replicas, saves over the gate's horizon. Believed is the
// larger of `realized` of the prediction and as much of it as is proved.
double ValueOf(const LearnedGate& gate, const GainPrice& price);
// Returns true if the value exceeds `times` the migration, or if the missed seconds do and a gain
// beyond the replicas is predicted.
bool Earns(const LearnedGate& gate, const GainPrice& price);

struct RebalanceInput {
  const Load& load;      // expected tokens of `num_steps` steps
  double num_steps = 1;  // > 0
  const Placement& incumbent;
  const Placement& candidate;  // aligned to `incumbent`
  double min_gain = 0;         // least fall of the peak load on `load`, as a fraction of it
  const Costs& costs;
  const LearnedGate* learned = nullptr;  // null: min_gain decides alone
  const GpuSpeeds* speeds = nullptr;     // null: equal speeds. Otherwise GPU load = tokens / speed
  SplitMode split = SplitMode::kEqual;
  // Windows, whose sum is `load`, each with a peak of its own: the peak load is their sum. Empty:
  // `load` is one batch.
  std::span<const Load> recent = {};
  // Outcomes of earlier predictions. Null: the reason shows figures computed on `load`.
  const PredictionRecord* predictions = nullptr;
  double measured = 0;                  // balancedness, as in Forecast
  const char* load_of = "these steps";  // name of `load` in the reason
};

// Evaluates the placement on the expected load, as the job splits tokens. errors: those of Evaluate
// and EvaluateBatches.
absl::StatusOr<Evaluation> EvaluateExpected(const RebalanceInput& input,
                                            const Placement& placement);

enum class RebalanceRule {
  kNoChange,  // kept: the policy returned the current placement
  kNoTokens,  // kept: the steps that the decision covers have no tokens
  kMinGain,   // kept: the gain is below min_gain
  kCost,      // kept: the gain does not earn its price
  kBacktest,  // kept: no candidate of the back-test is proved to be better than doing nothing
  kPays,      // rebalance
  kReturn,    // rebalance: back to the placement that the back-test began with
};

// "no_change", "min_gain", ..: for JSON.
const char* NameOf(RebalanceRule rule);

struct RebalanceDecision {
  bool rebalance = false;
  RebalanceRule rule = RebalanceRule::kMinGain;
  // "rebalance saves 1.9 s over 1000 steps, counted with 62 % of the predicted gain as the
  // back-test of 24 windows shows, for 0.21 s of migration: peak GPU load of these steps falls 12.3
  // % (balancedness measured 0.842, predicted 0.901 +- 0.030, gain +0.059; the last 9 predictions
  // were within 0.020)", or "kept, ..". A reason that the prices decided against ends with
  // "see: eplbctl help costs".
  std::string reason;
  // Absent without tokens. The prediction is the candidate's.
  std::optional<Prediction> prediction;
  std::optional<double> balancedness_before;    // balancedness of the incumbent, computed on `load`
  std::optional<double> balancedness_computed;  // balancedness of the candidate, computed on `load`
  double peak_before = 0;                       // peak load of the incumbent on `load`
  double peak_computed = 0;                     // peak load of the candidate on `load`
  std::vector<double> peak_falls;               // [L], fall of each layer's peak load
  MigrationCost migration;  // zero if the decision was made without looking at it

  double peak_fall() const { return peak_before > 0 ? 1 - peak_computed / peak_before : 0; }
};

// gain = 1 - peak load of the candidate / peak load of the incumbent, peak load = sum over layers.
// A rebalance needs gain >= min_gain and > 0. With `learned` it also needs a candidate in use and,
// with prices, a gain that earns its price (Earns). errors: InvalidArgument when shapes differ;
// those of PlanMigration. threads: safe, no state.
absl::StatusOr<RebalanceDecision> EvaluateRebalance(const RebalanceInput& input);

}  // namespace eplb
