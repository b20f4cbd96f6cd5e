// Whether a rebalance pays, and why, as one sentence: the rule that the daemon and `eplbctl replay`
// share.
#ifndef EPLB_PLACEMENT_DECISION_REBALANCE_H_
#define EPLB_PLACEMENT_DECISION_REBALANCE_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "placement/decision/cost.h"
#include "placement/decision/prediction.h"
#include "placement/decision/track_record.h"
#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// What a back-test on the job's own windows (placement/backtest) says of a gain that is predicted
// now.
struct LearnedGate {
  bool in_use = true;        // false: no candidate is proved to be better than doing nothing
  double realized = 0.5;     // of predicted gains, what later windows showed; 0..1
  double horizon_steps = 0;  // that a gain is counted over
  // Per step, of the peak load: what the candidate's own placement has saved for certain against
  // the one in force. So much of a gain is believed whatever became of other predictions.
  double proved_tokens = 0;
  // What the candidate's own placements saved for certain, against the one in force and since that
  // came into force; 0 where the candidate spent more meanwhile. Once it is more than a migration,
  // waiting has cost as much as the move would have (ski rental).
  double missed_seconds = 0;
  // What the job may lose: kAllowance of the time without any move, and what its moves have saved
  // beyond their price. A dearer migration goes by what is surer, with more of the scatter taken
  // off: the candidate in use is the luckiest of many.
  double budget_seconds = std::numeric_limits<double>::infinity();
  struct Sure {
    double realized = 0;
    double proved_tokens = 0;
    double missed_seconds = 0;
  };
  Sure sure;
  double times = 1;     // that it must be above its price; more while little is known
  int64_t windows = 0;  // that this was learned from
  std::string choice;   // the candidate in use, for the sentence
};

// The gate as a decision at these costs uses it: nothing is trusted beyond costs.horizon_steps.
LearnedGate CappedBy(const Costs& costs, LearnedGate gate);

// Whether a gain pays: (believed - replicas) * horizon is more than `times` the migration, where
// believed is `realized` of the predicted gain, or as much of it as is proved. Or `missed_seconds`
// is more than that, and a gain is predicted beyond the replicas. predicted and replicas: seconds
// per step. `value`, when given: the left side; a migration above the budget goes by gate.sure.
struct GainPrice {
  double migration = 0;      // seconds
  double token_seconds = 1;  // of the proved tokens
};
bool Earns(const LearnedGate& gate, double predicted, double replicas, const GainPrice& price,
           double* value = nullptr);

struct RebalanceInput {
  const Load& load;      // what is expected: the tokens of `num_steps` steps
  double num_steps = 1;  // > 0
  const Placement& incumbent;
  const Placement& candidate;  // aligned to `incumbent`
  double min_gain = 0;         // least fall of the peak load on `load`, as a fraction of it
  double steps_to_next = 1;    // until the next decision can be made
  const Costs& costs;
  const TrackRecord& record;             // looked at when the costs are priced
  const LearnedGate* learned = nullptr;  // it decides in the place of the record's trials
  const GpuSpeeds* speeds = nullptr;     // none: all equal; else GPU loads are tokens / speed
  // With kBatch peaks are those that exact splits leave: of each window of `recent`, which sum to
  // `load`, or of `load` as one batch where there is none.
  SplitMode split = SplitMode::kEqual;
  std::span<const Load> recent = {};
  // What earlier predictions turned out to be; without it what is computed on `load` is shown.
  const PredictionRecord* predictions = nullptr;
  double measured = 0;  // balancedness, as Forecast's
};

// The placement under what the input expects, as its job splits tokens. errors: those of Evaluate
// and EvaluateBatches.
absl::StatusOr<Evaluation> EvaluateExpected(const RebalanceInput& input,
                                            const Placement& placement);

// What a decision came down to.
enum class RebalanceRule {
  kNoChange,    // kept: the policy's placement is the one in force
  kNoTokens,    // kept: the steps that the decision covers have no tokens
  kMinGain,     // kept: the gain is below min_gain
  kNoEvidence,  // kept: no later window has confirmed a saving yet
  kCost,        // kept: the confirmed saving is no more than the cost
  kRisk,        // kept: more is at stake than the loss budget and the confirmed saving allow
  kBacktest,    // kept: no candidate of the back-test is proved to be better than doing nothing
  kPays,        // rebalance
  kReturn,      // back to the placement that the record began with
};

// "no_change", "min_gain", ..: for JSON.
const char* NameOf(RebalanceRule rule);

struct RebalanceDecision {
  bool rebalance = false;
  RebalanceRule rule = RebalanceRule::kMinGain;
  // "rebalance saves 1.9 s over 1000 steps for 0.21 s of migration: peak GPU load of these steps
  // falls 12.3 % (balancedness measured 0.842, predicted 0.901 +- 0.030, gain +0.059; the last 9
  // predictions were within 0.020)", or "kept, ..": the caller puts before it which steps, and
  // after it what it knows. A reason that the prices decided against ends with kSeeCosts.
  std::string reason;
  // These three are absent without tokens. The prediction is the candidate's; without a record it
  // is what is computed.
  std::optional<Prediction> prediction;
  std::optional<double> balancedness_before;    // computed on `load`: of the incumbent, and
  std::optional<double> balancedness_computed;  // of the candidate
  double peak_before = 0;                       // likewise, of the peak load, and
  double peak_computed = 0;
  MigrationCost migration;  // zero where it was not looked at: kept before it came to that

  double peak_fall() const { return peak_before > 0 ? 1 - peak_computed / peak_before : 0; }
};

// gain = 1 - peak load of the candidate / peak load of the incumbent, peak load = sum over layers.
// The incumbent is kept if `load` has no tokens.
// Without prices a rebalance needs gain >= min_gain and > 0. With prices it also has to be
// - earned: saved > spent for some trial of the record, where
//     saved = the lesser, per step, of the gain on `load` and of what the trial really saved (low
//             estimate), for as many steps as it was watched, at most costs.horizon_steps;
//     spent = migration, and what the candidate's replicas cost over these steps beyond the
//             incumbent's.
//   The loss of staying was already as large as the price of going (ski rental); a gain that drift
//   eats up sooner never gets there, and one that is only noise has no record at all.
// - and what is at stake must be affordable. At stake are the migration, the same migration back,
//   and what an interval of two standard deviations below the mean loses until the next decision.
//   It is affordable when it is no more than
//   - the loss budget: kAllowance of the time without any move, plus what was saved so far, less
//     what was spent. So being wrong costs about kAllowance, not more; or
//   - 1 / kTimesEarned of net = saved - replicas: waiting for the budget would lose more. With 3
//     or 4 in its place some random drift loses more than 0.5 % (tests/placement/replay).
// With `learned` the back-test decides instead: a candidate must be in use, and the gain must earn
// its price (Earns).
// errors: InvalidArgument when shapes differ; those of PlanMigration. threads: safe, no state.
inline constexpr double kAllowance = 0.003;
inline constexpr double kTimesEarned = 5;
inline constexpr char kSeeCosts[] = "; see: eplbctl help costs";
absl::StatusOr<RebalanceDecision> EvaluateRebalance(const RebalanceInput& input);

// With prices, after the candidate was kept: whether to go back to where the record began (the
// candidate here is that placement, aligned; load and min_gain are not looked at). Only when the
// incumbent has lost against it since it came into force, the account does not bear another
// interval like that, and the way back is within the account or smaller than what was lost.
absl::StatusOr<RebalanceDecision> EvaluateReturn(const RebalanceInput& input);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_DECISION_REBALANCE_H_
