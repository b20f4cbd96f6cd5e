#include "placement/decision/rebalance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "placement/split/batch_split.h"

namespace eplb {
namespace {

// Of the load that is decided on: no prediction.
constexpr char kPeak[] = "peak GPU load of these steps";
constexpr double kLeastWindows = 2;  // before which a trial says nothing of its spread

// What one trial says, in seconds.
struct Prospect {
  double windows = 0;  // that the trial was compared on
  double steps = 0;    // that the saving is counted over
  double saved = 0;
  double replicas = 0;  // spent on replicas over these steps; below 0: fewer than now
  double net = 0;       // without the migration
  double at_risk = 0;   // what may be lost until the next decision
};

// predicted: seconds saved per step on the load that was decided on; replicas: seconds more spent
// per step.
Prospect BestProspect(const RebalanceInput& input, double predicted, double replicas) {
  const double token_seconds = input.costs.token_seconds;
  Prospect best;
  for (const SavedTokens& trial : input.record.Trials(input.incumbent)) {
    if (trial.steps <= 0) continue;
    Prospect prospect{.windows = trial.windows, .steps = trial.steps};
    if (input.costs.horizon_steps > 0) {
      prospect.steps = std::min(prospect.steps, static_cast<double>(input.costs.horizon_steps));
    }
    const double proved = trial.Low() / trial.steps * token_seconds;
    prospect.saved = Finite(std::min(predicted, proved) * prospect.steps);
    prospect.replicas = Finite(replicas * prospect.steps);
    prospect.net = Finite(prospect.saved - prospect.replicas);
    prospect.at_risk = Finite(std::max(0.0, replicas - trial.WorstPerStep() * token_seconds) *
                              input.steps_to_next);
    if (best.steps == 0 || prospect.net > best.net) best = prospect;
  }
  return best;
}

// What may be lost before rebalancing has done harm; negative once it has.
double Means(const RebalanceInput& input) {
  const TrackRecord& record = input.record;
  return Finite((kAllowance * record.start_tokens() + record.saved_tokens()) *
                    input.costs.token_seconds -
                record.spent_seconds());
}

std::string SpentText(const MigrationCost& migration, const Costs& costs, double replicas) {
  std::string text = MigrationText(migration, costs);
  if (replicas > 0) absl::StrAppend(&text, " and ", SecondsText(replicas), " of replicas");
  return text;
}

std::string StepsText(double steps) {
  return CountText(static_cast<int64_t>(std::min(steps, 9e18)), "step");
}

// Why what is at stake cannot be borne.
std::string RiskText(const Prospect& prospect, double price, double budget) {
  if (prospect.windows < kLeastWindows) {
    return "one window does not show how bad an interval can get";
  }
  const double stake = Finite(2 * price + prospect.at_risk);
  const ComparedText with_budget = CompareSeconds(stake, std::max(0.0, budget));
  const ComparedText with_saving = CompareSeconds(stake, prospect.net / kTimesEarned);
  // The one that needs more digits is the nearer miss.
  const std::string& shown =
      with_budget.of.size() > with_saving.of.size() ? with_budget.of : with_saving.of;
  static_assert(kTimesEarned == 5, "the sentence has a fifth");
  return absl::StrFormat(
      "%s are at stake (migration and return %s, a bad interval %s), more than the loss budget of "
      "%s and a fifth of the net saving, %s",
      shown, SecondsText(2 * price), SecondsText(prospect.at_risk), with_budget.than,
      with_saving.than);
}

// Decides with prices, once the gain is there. `how_far` says how far the peak load falls.
void EvaluatePriced(const RebalanceInput& input, double predicted, const std::string& how_far,
                    RebalanceDecision& decision) {
  const double replicas = Finite(ReplicaSecondsPerStep(input.candidate, input.costs) -
                                 ReplicaSecondsPerStep(input.incumbent, input.costs));
  const Prospect prospect = BestProspect(input, predicted, replicas);
  const double price = decision.migration.seconds;
  const std::string spent = SpentText(decision.migration, input.costs, prospect.replicas);
  const std::string would_fall = absl::StrCat("kept, ", kPeak, " would fall ", how_far);
  if (prospect.steps == 0) {
    decision.rule = RebalanceRule::kNoEvidence;
    decision.reason = absl::StrCat(would_fall, " for ", spent,
                                   ", but no later window has confirmed a saving yet", kSeeCosts);
    return;
  }
  const std::string confirmed =
      absl::StrCat(CountText(static_cast<int64_t>(prospect.windows), "later window"),
                   prospect.windows == 1 ? " confirms" : " confirm", " a saving of only ");
  if (prospect.net <= price) {
    const ComparedText text =
        CompareSeconds(std::max(0.0, prospect.saved), price + std::max(0.0, prospect.replicas));
    decision.rule = RebalanceRule::kCost;
    decision.reason =
        absl::StrCat(would_fall, ", but ", confirmed, text.of, " over ", StepsText(prospect.steps),
                     ", at a cost of ", text.than, " (", spent, ")", kSeeCosts);
    return;
  }
  const std::string saves = absl::StrCat(SecondsText(std::max(0.0, prospect.saved)), " over ",
                                         StepsText(prospect.steps), " for ", spent);
  const double budget = Means(input);
  const double stake = 2 * price + prospect.at_risk;
  if (stake > budget && stake > prospect.net / kTimesEarned) {
    decision.rule = RebalanceRule::kRisk;
    decision.reason = absl::StrCat(would_fall, ", and the confirmed saving is ", saves, ", but ",
                                   RiskText(prospect, price, budget), kSeeCosts);
    return;
  }
  decision.rebalance = true;
  decision.rule = RebalanceRule::kPays;
  decision.reason = absl::StrCat("rebalance saves ", saves, ": ", kPeak, " falls ", how_far);
}

// What a gain is believed for: what is surer, when the job cannot bear to lose the migration.
LearnedGate::Sure ShownBy(const LearnedGate& gate, double migration) {
  if (migration > gate.budget_seconds) return gate.sure;
  return {gate.realized, gate.proved_tokens, gate.missed_seconds};
}

// Decides by what the job's own back-test learned.
void EvaluateLearned(const RebalanceInput& input, double predicted, const std::string& how_far,
                     RebalanceDecision& decision) {
  const LearnedGate gate = CappedBy(input.costs, *input.learned);
  const std::string windows = CountText(gate.windows, "window");
  const std::string would_fall = absl::StrCat("kept, ", kPeak, " would fall ", how_far);
  if (!gate.in_use) {
    decision.rule = RebalanceRule::kBacktest;
    decision.reason = absl::StrCat(would_fall, ", but in the back-test of ", windows,
                                   " no candidate is proved to be better than doing nothing");
    return;
  }
  const double replicas = Finite(ReplicaSecondsPerStep(input.candidate, input.costs) -
                                 ReplicaSecondsPerStep(input.incumbent, input.costs));
  const double price = decision.migration.seconds;
  double value = 0;
  decision.rebalance =
      Earns(gate, predicted, replicas,
            {.migration = price, .token_seconds = input.costs.token_seconds}, &value);
  const std::string spent =
      SpentText(decision.migration, input.costs, Finite(replicas * gate.horizon_steps));
  const double share =
      predicted > 0 ? std::clamp((value / gate.horizon_steps + replicas) / predicted, 0.0, 1.0) : 0;
  const std::string counted = absl::StrFormat(
      "over %s, counted with %.0f %% of the predicted gain%s", StepsText(gate.horizon_steps),
      100 * share,
      gate.windows == 0 ? std::string() : absl::StrCat(" as the back-test of ", windows, " shows"));
  if (decision.rebalance) {
    decision.rule = RebalanceRule::kPays;
    const bool waited = value <= gate.times * price;
    decision.reason =
        absl::StrCat("rebalance saves ", SecondsText(std::max(0.0, value)), " ", counted,
                     waited ? absl::StrCat(" (the candidate has saved ",
                                           SecondsText(ShownBy(gate, price).missed_seconds),
                                           " against the placement in force)")
                            : std::string(),
                     ", for ", spent, ": ", kPeak, " falls ", how_far);
    return;
  }
  decision.rule = RebalanceRule::kCost;
  if (input.costs.bandwidths == BandwidthSource::kAssumed) {
    decision.reason = absl::StrCat(would_fall, ", which saves ", SecondsText(std::max(0.0, value)),
                                   " ", counted, ", and does not pay for ", spent, kSeeCosts);
    return;
  }
  const ComparedText text = CompareSeconds(std::max(0.0, value), gate.times * price);
  decision.reason =
      absl::StrCat(would_fall, ", which saves ", text.of, " ", counted, ", and ",
                   gate.times > 1 ? absl::StrFormat("%.1f times ", gate.times) : std::string(),
                   "the cost is ", text.than, " (", spent, ")", kSeeCosts);
}

// What is measured now and predicted of the candidate; without a record of predictions what is
// computed of both. REQUIRES: the decision has these figures.
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

// That a gain needs for a sentence with the one that is asked for, so that the texts differ.
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

bool Earns(const LearnedGate& gate, double predicted, double replicas, const GainPrice& price,
           double* value) {
  const LearnedGate::Sure shown = ShownBy(gate, price.migration);
  const double proved = std::min(predicted, shown.proved_tokens * price.token_seconds);
  const double believed = std::max(shown.realized * predicted, proved);
  const double saved = Finite((believed - replicas) * gate.horizon_steps);
  if (value != nullptr) *value = saved;
  const double price_now = gate.times * price.migration;
  return (saved > 0 && saved > price_now) ||
         (predicted > replicas && shown.missed_seconds > price_now);
}

absl::StatusOr<Evaluation> EvaluateExpected(const RebalanceInput& input,
                                            const Placement& placement) {
  if (input.split == SplitMode::kEqual || input.recent.empty()) {
    return EvaluateSplit(input.load, placement, input.split, input.speeds);
  }
  return EvaluateBatches(input.recent, placement, input.speeds);
}

absl::StatusOr<RebalanceDecision> EvaluateRebalance(const RebalanceInput& input) {
  EPLB_ASSIGN_OR_RETURN(const Evaluation before, EvaluateExpected(input, input.incumbent));
  EPLB_ASSIGN_OR_RETURN(const Evaluation after, EvaluateExpected(input, input.candidate));
  RebalanceDecision decision{.balancedness_before = before.mean_balancedness,
                             .balancedness_computed = after.mean_balancedness,
                             .peak_before = before.peak_load,
                             .peak_computed = after.peak_load};
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
    decision.reason = absl::StrCat("kept, ", kPeak, gain < 0 ? " would rise " : " would fall ",
                                   how_far, too_little);
    return decision;
  }
  EPLB_ASSIGN_OR_RETURN(decision.migration,
                        PriceMigration(input.incumbent, input.candidate, input.costs));
  if (!input.costs.priced() && (input.learned == nullptr || input.learned->in_use)) {
    decision.rebalance = true;
    decision.rule = RebalanceRule::kPays;
    decision.reason = absl::StrCat(kPeak, " falls ", how_far);
    return decision;
  }
  const double predicted =
      Finite((before.peak_load - after.peak_load) / input.num_steps * input.costs.token_seconds);
  if (input.learned != nullptr) {
    EvaluateLearned(input, predicted, how_far, decision);
  } else {
    EvaluatePriced(input, predicted, how_far, decision);
  }
  return decision;
}

absl::StatusOr<RebalanceDecision> EvaluateReturn(const RebalanceInput& input) {
  RebalanceDecision decision;
  decision.rule = RebalanceRule::kReturn;
  const SavedTokens& saved = input.record.incumbent_saved();
  const double token_seconds = input.costs.token_seconds;
  const double lost = Finite(-saved.sum * token_seconds);
  if (!input.costs.priced() || lost <= 0) {
    decision.reason = "kept, the placement in force is no worse than the starting placement";
    return decision;
  }
  EPLB_ASSIGN_OR_RETURN(decision.migration,
                        PriceMigration(input.incumbent, input.candidate, input.costs));
  const double price = decision.migration.seconds;
  const double at_risk =
      Finite(std::max(0.0, -saved.WorstPerStep() * token_seconds) * input.steps_to_next);
  const double budget = Means(input);
  decision.rebalance = budget < price + at_risk && price <= std::max(budget, lost);
  const std::string than = absl::StrCat("the placement in force lost ", SecondsText(lost), " in ",
                                        StepsText(saved.steps), " against the starting placement");
  decision.reason = decision.rebalance
                        ? absl::StrCat("return to the starting placement for ",
                                       MigrationText(decision.migration, input.costs), ": ", than)
                        : absl::StrCat("kept, ", than, ", which the loss budget of ",
                                       SecondsText(std::max(0.0, budget)), " bears", kSeeCosts);
  return decision;
}

const char* NameOf(RebalanceRule rule) {
  switch (rule) {
    case RebalanceRule::kNoChange:
      return "no_change";
    case RebalanceRule::kNoTokens:
      return "no_tokens";
    case RebalanceRule::kMinGain:
      return "min_gain";
    case RebalanceRule::kNoEvidence:
      return "no_evidence";
    case RebalanceRule::kCost:
      return "cost";
    case RebalanceRule::kRisk:
      return "risk";
    case RebalanceRule::kBacktest:
      return "backtest";
    case RebalanceRule::kPays:
      return "pays";
    case RebalanceRule::kReturn:
      return "return";
  }
  return "";
}

}  // namespace eplb
