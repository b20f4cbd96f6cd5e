#include "placement/rebalance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "placement/evaluate.h"
#include "placement/status_macros.h"

namespace eplb {
namespace {

// What one trial says, in seconds.
struct Prospect {
  double steps = 0;  // that the saving is counted over
  double saved = 0;
  double replicas = 0;  // spent on replicas over these steps; below 0: fewer than now
  double net = 0;       // without the migration
  double at_risk = 0;   // what may be lost until the next decision
};

// predicted: seconds saved per step on the load that was decided on; replicas: seconds more spent
// per step.
Prospect BestProspect(const RebalanceQuestion& question, double predicted, double replicas) {
  const double token_seconds = question.costs.token_seconds;
  Prospect best;
  for (const SavedTokens& trial : question.record.Trials(question.incumbent)) {
    if (trial.steps <= 0) continue;
    Prospect prospect{.steps = trial.steps};
    if (question.costs.horizon_steps > 0) {
      prospect.steps = std::min(prospect.steps, static_cast<double>(question.costs.horizon_steps));
    }
    const double proved = trial.Low() / trial.steps * token_seconds;
    prospect.saved = Finite(std::min(predicted, proved) * prospect.steps);
    prospect.replicas = Finite(replicas * prospect.steps);
    prospect.net = Finite(prospect.saved - prospect.replicas);
    prospect.at_risk = Finite(std::max(0.0, replicas - trial.WorstPerStep() * token_seconds) *
                              question.steps_to_next);
    if (best.steps == 0 || prospect.net > best.net) best = prospect;
  }
  return best;
}

// What may be lost before rebalancing has done harm; negative once it has.
double Means(const RebalanceQuestion& question) {
  const TrackRecord& record = question.record;
  return Finite((kAllowance * record.start_tokens() + record.saved_tokens()) *
                    question.costs.token_seconds -
                record.spent_seconds());
}

std::string SpentText(const MigrationCost& migration, double replicas) {
  std::string text = absl::StrCat(SecondsText(migration.seconds), " of migration");
  if (replicas > 0) absl::StrAppend(&text, " and ", SecondsText(replicas), " of replicas");
  return text;
}

// Decides with prices, once the gain is there. `fall` says how far the peak load falls.
void JudgePriced(const RebalanceQuestion& question, double predicted, const std::string& fall,
                 const std::string& would_fall, RebalanceVerdict& verdict) {
  const double replicas = Finite(ReplicaSecondsPerStep(question.candidate, question.costs) -
                                 ReplicaSecondsPerStep(question.incumbent, question.costs));
  const Prospect prospect = BestProspect(question, predicted, replicas);
  const double price = verdict.migration.seconds;
  const std::string spent = SpentText(verdict.migration, prospect.replicas);
  if (prospect.steps == 0) {
    verdict.reason = absl::StrCat("kept, ", would_fall, ", ", spent,
                                  " is paid once later windows have proved that it pays");
    return;
  }
  const std::string over =
      absl::StrCat(SecondsText(std::max(0.0, prospect.saved)), " over ",
                   CountText(static_cast<int64_t>(std::min(prospect.steps, 9e18)), "step"));
  if (prospect.net <= price) {
    verdict.reason =
        absl::StrCat("kept, ", would_fall, ", but earlier candidates would have saved ", over,
                     ", no more than the ", spent);
    return;
  }
  const double means = Means(question);
  const bool certain = prospect.net > kCertain * price && prospect.at_risk == 0;
  if (!certain && 2 * price + prospect.at_risk > means) {
    verdict.reason =
        absl::StrCat("kept, ", would_fall, ", and earlier candidates would have saved ", over,
                     ", but there and back is ", SecondsText(2 * price),
                     " and an unlucky interval ", SecondsText(prospect.at_risk), ", more than the ",
                     SecondsText(std::max(0.0, means)), " that may be risked");
    return;
  }
  verdict.rebalance = true;
  verdict.reason = absl::StrCat("rebalance saves ", over, " for ", spent, ": ", fall);
}

}  // namespace

absl::StatusOr<RebalanceVerdict> JudgeRebalance(const RebalanceQuestion& question) {
  EPLB_ASSIGN_OR_RETURN(const Evaluation before, Evaluate(question.load, question.incumbent));
  EPLB_ASSIGN_OR_RETURN(const Evaluation after, Evaluate(question.load, question.candidate));
  const double gain = before.peak_load > 0 ? Finite(1 - after.peak_load / before.peak_load) : 0;
  const std::string how_far = absl::StrFormat("%.1f %% (balancedness %.3f -> %.3f)", 100 * gain,
                                              before.mean_balancedness, after.mean_balancedness);
  const std::string would_fall = absl::StrCat("predicted peak GPU load would fall ", how_far);
  RebalanceVerdict verdict;
  if (gain <= 0 || gain < question.min_gain) {
    verdict.reason = absl::StrFormat("kept, %s, at least %.1f %% is asked for", would_fall,
                                     100 * question.min_gain);
    return verdict;
  }
  EPLB_ASSIGN_OR_RETURN(verdict.migration,
                        PriceMigration(question.incumbent, question.candidate, question.costs));
  if (!question.costs.priced()) {
    verdict.rebalance = true;
    verdict.reason = absl::StrCat("predicted peak GPU load falls ", how_far);
    return verdict;
  }
  const double predicted = Finite((before.peak_load - after.peak_load) / question.num_steps *
                                  question.costs.token_seconds);
  JudgePriced(question, predicted, absl::StrCat("peak GPU load falls ", how_far), would_fall,
              verdict);
  return verdict;
}

absl::StatusOr<RebalanceVerdict> JudgeReturn(const RebalanceQuestion& question) {
  RebalanceVerdict verdict;
  const SavedTokens& saved = question.record.incumbent_saved();
  const double token_seconds = question.costs.token_seconds;
  const double lost = Finite(-saved.sum * token_seconds);
  if (!question.costs.priced() || lost <= 0) {
    verdict.reason = "kept, no less than the layout before any move";
    return verdict;
  }
  EPLB_ASSIGN_OR_RETURN(verdict.migration,
                        PriceMigration(question.incumbent, question.candidate, question.costs));
  const double price = verdict.migration.seconds;
  const double at_risk =
      Finite(std::max(0.0, -saved.WorstPerStep() * token_seconds) * question.steps_to_next);
  const double means = Means(question);
  verdict.rebalance = means < price + at_risk && price <= std::max(means, lost);
  const std::string than = absl::StrCat("this placement lost ", SecondsText(lost), " in ",
                                        CountText(static_cast<int64_t>(saved.steps), "step"),
                                        " against the layout before any move");
  verdict.reason = verdict.rebalance
                       ? absl::StrCat("back for ", SecondsText(price), " of migration: ", than)
                       : absl::StrCat("kept, although ", than);
  return verdict;
}

std::string CountText(int64_t count, const char* one) {
  return absl::StrCat(count, " ", one, count == 1 ? "" : "s");
}

std::string SecondsText(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size < 1e-4) return absl::StrFormat("%.2g us", 1e6 * seconds);
  if (size < 0.0995) return absl::StrFormat("%.2g ms", 1e3 * seconds);
  if (size < 9.95) return absl::StrFormat("%.2g s", seconds);
  if (size < 1e6) return absl::StrFormat("%.0f s", seconds);
  return absl::StrFormat("%.3g s", seconds);
}

std::string BytesText(int64_t bytes) {
  constexpr std::pair<double, const char*> kUnits[] = {{1e18, "EB"}, {1e15, "PB"}, {1e12, "TB"},
                                                       {1e9, "GB"},  {1e6, "MB"},  {1e3, "kB"}};
  for (const auto& [size, name] : kUnits) {
    const double scaled = static_cast<double>(bytes) / size;
    if (scaled >= 1) return absl::StrFormat("%.1f %s", scaled, name);
  }
  return absl::StrCat(bytes, " B");
}

}  // namespace eplb
