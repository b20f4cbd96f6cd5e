#include "placement/decision/rebalance.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "placement/split/batch_split.h"

namespace eplb {
namespace {

constexpr char kSeeCosts[] = "; see: eplbctl help costs";

// A computed figure, no prediction.
std::string PeakOf(const RebalanceInput& input) {
  return absl::StrCat("peak GPU load of ", input.load_of);
}

std::string StepsText(double steps) {
  return CountText(static_cast<int64_t>(std::min(steps, 9e18)), "step");
}

const LearnedGate::Shown& ShownFor(const LearnedGate& gate, double migration) {
  return migration > gate.budget_seconds ? gate.sure : gate.shown;
}

// Decides with prices, once the gain reaches min_gain. how_far: how far the peak load falls.
void DecidePriced(const RebalanceInput& input, const std::string& how_far,
                  RebalanceDecision& decision) {
  const LearnedGate gate = CappedBy(input.costs, *input.learned);
  const GainPrice price{.predicted = Finite((decision.peak_before - decision.peak_computed) /
                                            input.num_steps * input.costs.token_seconds),
                        .replicas = Finite(ReplicaSecondsPerStep(input.candidate, input.costs) -
                                           ReplicaSecondsPerStep(input.incumbent, input.costs)),
                        .migration = decision.migration.seconds,
                        .token_seconds = input.costs.token_seconds};
  const double value = ValueOf(gate, price);
  const double replicas = Finite(price.replicas * gate.horizon_steps);
  std::string spent = MigrationText(decision.migration, input.costs);
  if (replicas > 0) absl::StrAppend(&spent, " and ", SecondsText(replicas), " of replicas");
  const double believed = value / gate.horizon_steps + price.replicas;
  const double share = price.predicted > 0 ? std::clamp(believed / price.predicted, 0.0, 1.0) : 0;
  const std::string counted = absl::StrFormat(
      "over %s, counted with %.0f %% of the predicted gain%s", StepsText(gate.horizon_steps),
      100 * share,
      gate.windows == 0
          ? ""
          : absl::StrCat(" as the back-test of ", CountText(gate.windows, "window"), " shows"));
  decision.rebalance = Earns(gate, price);
  if (decision.rebalance) {
    std::string waited;
    if (value <= gate.times * price.migration) {
      waited = absl::StrCat(" (the candidate has saved ",
                            SecondsText(ShownFor(gate, price.migration).missed_seconds),
                            " against the current placement)");
    }
    decision.rule = gate.returns ? RebalanceRule::kReturn : RebalanceRule::kPays;
    decision.reason =
        absl::StrCat(gate.returns ? "return to the starting placement" : "rebalance", " saves ",
                     SecondsText(std::max(0.0, value)), " ", counted, waited, ", for ", spent, ": ",
                     PeakOf(input), " falls ", how_far);
    return;
  }
  decision.rule = RebalanceRule::kCost;
  const std::string would_fall =
      absl::StrCat("kept, ", PeakOf(input), " would fall ", how_far, ", which saves ");
  if (input.costs.bandwidths == BandwidthSource::kAssumed) {
    decision.reason = absl::StrCat(would_fall, SecondsText(std::max(0.0, value)), " ", counted,
                                   ", and does not pay for ", spent, kSeeCosts);
    return;
  }
  const ComparedText text = CompareSeconds(std::max(0.0, value), gate.times * price.migration);
  decision.reason =
      absl::StrCat(would_fall, text.of, " ", counted, ", and ",
                   gate.times > 1 ? absl::StrFormat("%.1f times ", gate.times) : std::string(),
                   "the cost is ", text.than, " (", spent, ")", kSeeCosts);
}

// Returns the measured and the predicted balancedness; without a record of predictions, the
// computed ones. REQUIRES: the decision has these figures.
std::string BalancednessClause(const RebalanceInput& input, const RebalanceDecision& decision) {
  const std::string name =
      absl::StrCat("balancedness", input.split == SplitMode::kBatch ? " with exact splits " : " ");
  if (input.predictions == nullptr) {
    return absl::StrFormat("%scomputed %.3f -> %.3f", name, *decision.balancedness_before,
                           *decision.balancedness_computed);
  }
  return absl::StrCat(name,
                      ForecastText({.measured = input.measured,
                                    .predicted = decision.prediction->balancedness,
                                    .error = decision.prediction->error}),
                      "; ", input.predictions->EvidenceText());
}

std::string PercentText(double part, int digits) {
  return absl::StrFormat("%.*f %%", digits, 100 * part);
}

// Returns the digits that `gain` needs so that its text differs from that of `min_gain`.
int DigitsOf(double gain, double min_gain) {
  constexpr int kMost = 6;
  int digits = 1;
  if (gain <= 0 || gain >= min_gain) return digits;
  while (digits < kMost && PercentText(gain, digits) == PercentText(min_gain, digits)) ++digits;
  return digits;
}

}  // namespace

LearnedGate CappedBy(const Costs& costs, LearnedGate gate) {
  if (costs.horizon_steps > 0) {
    gate.horizon_steps = std::min(gate.horizon_steps, static_cast<double>(costs.horizon_steps));
  }
  return gate;
}

double ValueOf(const LearnedGate& gate, const GainPrice& price) {
  const LearnedGate::Shown& shown = ShownFor(gate, price.migration);
  const double proved = std::min(price.predicted, shown.proved_tokens * price.token_seconds);
  const double believed = std::max(shown.realized * price.predicted, proved);
  return Finite((believed - price.replicas) * gate.horizon_steps);
}

bool Earns(const LearnedGate& gate, const GainPrice& price) {
  const double value = ValueOf(gate, price);
  const double asked = gate.times * price.migration;
  return (value > 0 && value > asked) || (price.predicted > price.replicas &&
                                          ShownFor(gate, price.migration).missed_seconds > asked);
}

absl::StatusOr<Evaluation> EvaluateExpected(const RebalanceInput& input,
                                            const Placement& placement) {
  if (input.recent.empty()) {
    return EvaluateSplit(input.load, placement, input.split, input.speeds);
  }
  return EvaluateWindows(input.recent, placement, input.split, {.speeds = input.speeds});
}

absl::StatusOr<RebalanceDecision> EvaluateRebalance(const RebalanceInput& input) {
  EPLB_ASSIGN_OR_RETURN(const Evaluation before, EvaluateExpected(input, input.incumbent));
  EPLB_ASSIGN_OR_RETURN(const Evaluation after, EvaluateExpected(input, input.candidate));
  RebalanceDecision decision{.balancedness_before = before.mean_balancedness,
                             .balancedness_computed = after.mean_balancedness,
                             .peak_before = before.peak_load,
                             .peak_computed = after.peak_load};
  for (size_t layer = 0; layer < before.max_gpu_load.size(); ++layer) {
    decision.peak_falls.push_back(before.max_gpu_load[layer] - after.max_gpu_load[layer]);
  }
  if (!before.mean_balancedness || !after.mean_balancedness) {
    decision.rule = RebalanceRule::kNoTokens;
    decision.reason = "kept, these steps have no tokens";
    return decision;
  }
  decision.prediction = input.predictions == nullptr
                            ? Prediction{.balancedness = *after.mean_balancedness}
                            : input.predictions->Predict(*after.mean_balancedness,
                                                         *before.mean_balancedness, input.measured);
  const double gain = Finite(decision.peak_fall());
  const int digits = DigitsOf(gain, input.min_gain);
  const std::string how_far = absl::StrCat(PercentText(std::abs(gain), digits), " (",
                                           BalancednessClause(input, decision), ")");
  if (gain <= 0 || gain < input.min_gain) {
    const std::string too_little =
        gain <= 0 ? std::string()
                  : absl::StrCat(", less than min_gain, ", PercentText(input.min_gain, digits));
    decision.reason = absl::StrCat("kept, ", PeakOf(input),
                                   gain < 0 ? " would rise " : " would fall ", how_far, too_little);
    return decision;
  }
  EPLB_ASSIGN_OR_RETURN(decision.migration,
                        PriceMigration(input.incumbent, input.candidate, input.costs));
  if (input.learned != nullptr && !input.learned->in_use) {
    decision.rule = RebalanceRule::kBacktest;
    decision.reason =
        absl::StrCat("kept, ", PeakOf(input), " would fall ", how_far, ", but in the back-test of ",
                     CountText(input.learned->windows, "window"),
                     " no move is proved to be better than doing nothing");
    return decision;
  }
  if (input.learned != nullptr && input.costs.priced()) {
    DecidePriced(input, how_far, decision);
    return decision;
  }
  decision.rebalance = true;
  decision.rule = RebalanceRule::kPays;
  decision.reason = absl::StrCat(PeakOf(input), " falls ", how_far);
  return decision;
}

const char* NameOf(RebalanceRule rule) {
  constexpr const char* kNames[] = {"no_change", "no_tokens", "min_gain", "cost",
                                    "backtest",  "pays",      "return"};
  static_assert(std::size(kNames) == static_cast<size_t>(RebalanceRule::kReturn) + 1);
  return kNames[static_cast<size_t>(rule)];
}

}  // namespace eplb
