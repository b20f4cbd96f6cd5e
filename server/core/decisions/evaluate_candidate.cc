#include "server/core/decisions/evaluate_candidate.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "base/text.h"

namespace eplb::core {
namespace {

// The candidate without the layers that the ranks cannot, or must not, switch.
struct WithinBudget {
  explicit WithinBudget(const Placement& incumbent) : target(incumbent) {}

  Placement target;
  std::vector<LayerMove> moves;  // moves of layers, or of their parts
  int64_t num_layers = 0;
  int64_t transfers = 0;
  std::vector<int32_t> left_out;
  int64_t rows_needed = 0;  // rows of the left out layer that needs most
  std::vector<int32_t> too_long;
  double longest_seconds = 0;  // seconds of the layer that would take longest
  bool measured = false;       // longest_seconds is from earlier chunks, not from the links
};

// Returns true if one part of the layer takes too long by itself. The price of a byte only makes
// parts shorter: were layers left out for it, one slow boundary could stop all later ones.
bool IsTooLong(const CandidateInput& question, std::span<const LayerMove> parts,
               WithinBudget& result) {
  bool too_long = false;
  for (const LayerMove& part : parts) {
    const double seconds =
        std::max(part.link_seconds, LeastPause(question.limits.measured, part.incoming_bytes));
    if (seconds <= question.limits.max_pause_seconds) continue;
    too_long = true;
    if (seconds <= result.longest_seconds) continue;
    result.longest_seconds = seconds;
    result.measured = seconds > part.link_seconds;
  }
  return too_long;
}

// Adds the layer that `parts` make up. transfers: of the layer as a whole; its parts may have more.
void AddLayer(const CandidateInput& question, std::span<LayerMove> parts, int64_t transfers,
              std::vector<LayerPlacement>& kept, WithinBudget& result) {
  if (IsTooLong(question, parts, result)) {
    result.too_long.push_back(parts.front().next.layer.value);
    return;
  }
  ++result.num_layers;
  result.transfers += transfers;
  kept.push_back(parts.back().next);
  std::move(parts.begin(), parts.end(), std::back_inserter(result.moves));
}

absl::StatusOr<WithinBudget> FitToBudget(const CandidateInput& question,
                                         const Placement& candidate) {
  Costs costs = question.costs;
  costs.expert = question.migration;
  EPLB_ASSIGN_OR_RETURN(std::vector<LayerMove> moves,
                        MovesOf(question.incumbent, candidate, costs));
  WithinBudget result{question.incumbent};
  std::erase_if(moves, [&](const LayerMove& move) {
    if (move.staging_rows <= question.staging_rows) return false;
    result.left_out.push_back(move.next.layer.value);
    result.rows_needed = std::max<int64_t>(result.rows_needed, move.staging_rows);
    return true;
  });
  std::vector<int64_t> transfers;
  for (const LayerMove& move : moves) transfers.push_back(move.transfers);
  EPLB_ASSIGN_OR_RETURN(moves,
                        SplitToFit(question.incumbent, std::move(moves), costs, question.limits));
  std::vector<LayerPlacement> kept;
  auto of_layer = transfers.begin();
  for (std::span<LayerMove> rest(moves); !rest.empty(); ++of_layer) {
    const auto end = std::ranges::find_if(rest, [&rest](const LayerMove& move) {
      return move.next.layer != rest.front().next.layer;
    });
    const auto count = static_cast<size_t>(end - rest.begin());
    AddLayer(question, rest.first(count), *of_layer, kept, result);
    rest = rest.subspan(count);
  }
  EPLB_ASSIGN_OR_RETURN(result.target, question.incumbent.WithLayers(kept));
  return result;
}

// False while the price of a byte is a guess: seconds that rest on it are no figures.
bool PricesAreKnown(const Costs& costs) {
  return costs.priced() && costs.bandwidths != BandwidthSource::kAssumed;
}

std::string Steps(const CandidateInput& question) {
  return absl::StrCat("steps ", question.first_step, "..", question.last_step);
}

std::string Layers(const std::vector<int32_t>& layers) {
  return absl::StrCat("layer", layers.size() == 1 ? " " : "s ", absl::StrJoin(layers, ", "));
}

void SayWhatIsLeftOut(const CandidateInput& question, const WithinBudget& within_budget,
                      CandidateDecision& decision) {
  if (!within_budget.left_out.empty()) {
    decision.left_out = absl::StrFormat(
        "%s: %s left out, %d rows of staging on one GPU are needed and the ranks have %d",
        Steps(question), Layers(within_budget.left_out), within_budget.rows_needed,
        question.staging_rows);
  }
  if (!within_budget.too_long.empty()) {
    decision.too_long = absl::StrFormat(
        "%s: %s left out, a pause of %s is predicted%s and migration.max_pause is %s",
        Steps(question), Layers(within_budget.too_long), SecondsText(within_budget.longest_seconds),
        within_budget.measured ? " from boundaries with fewer bytes" : "",
        SecondsText(question.limits.max_pause_seconds));
  }
}

// Cuts `within_budget` into chunks, with its figures in the sentence.
absl::Status Take(const CandidateInput& question, const WithinBudget& within_budget,
                  const RebalanceDecision& judged, CandidateDecision& decision) {
  std::vector<LayerMove> moves = within_budget.moves;
  OrderByValue(judged.peak_falls, moves);
  decision.chunks = CutIntoBoundaries(moves, question.limits);
  if (question.limits.seconds_per_byte == 0) {  // the boundary that measures is a short one
    Costs costs = question.costs;
    costs.expert = question.migration;
    EPLB_ASSIGN_OR_RETURN(
        std::vector<Chunk> first,
        CutAgain(question.incumbent, decision.chunks.front(), costs, question.limits));
    decision.chunks.erase(decision.chunks.begin());
    decision.chunks.insert(decision.chunks.begin(), std::make_move_iterator(first.begin()),
                           std::make_move_iterator(first.end()));
  }
  EPLB_RETURN_IF_ERROR(Complete(question.incumbent, decision.chunks.front()));
  absl::StrAppend(&decision.reason, ", ", CountText(within_budget.num_layers, "layer"), " in ",
                  CountText(static_cast<int64_t>(decision.chunks.size()), "chunk"), ", ",
                  CountText(within_budget.transfers, "transfer"));
  if (question.costs.token_seconds > 0 && judged.migration.bytes > 0) {
    absl::StrAppend(&decision.reason, ", ", BytesText(judged.migration.bytes));
  }
  return absl::OkStatus();
}

// Takes `within_budget` when the rule says so; the reason either way.
absl::Status Settle(const CandidateInput& question, const WithinBudget& within_budget,
                    const RebalanceDecision& judged, CandidateDecision& decision) {
  decision.reason = absl::StrCat(Steps(question), ": ", judged.reason);
  if (!judged.rebalance) {
    if (!question.force) return absl::OkStatus();
    decision.reason =
        absl::StrCat(Steps(question), ": forced; without force the result is: ", judged.reason);
  }
  return Take(question, within_budget, judged, decision);
}

// Those of `judged`, whose candidate is the target of `within_budget`.
absl::Status NoteFigures(const RebalanceInput& rebalance, const RebalanceDecision& judged,
                         const WithinBudget& within_budget, CandidateDecision& decision) {
  decision.transfers = within_budget.transfers;
  for (const double fall : judged.peak_falls) decision.falls.push_back(fall / rebalance.num_steps);
  decision.balancedness_before = judged.balancedness_before.value_or(0);
  decision.balancedness_computed = judged.balancedness_computed.value_or(0);
  decision.prediction = judged.prediction.value_or(Prediction());
  decision.target = within_budget.target;
  decision.peak_fall = judged.peak_fall();
  const Costs& costs = rebalance.costs;
  if (!PricesAreKnown(costs)) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const MigrationCost migration,
                        PriceMigration(rebalance.incumbent, within_budget.target, costs));
  const double gained =
      (judged.peak_before - judged.peak_computed) / rebalance.num_steps * costs.token_seconds;
  const double replicas = ReplicaSecondsPerStep(within_budget.target, costs) -
                          ReplicaSecondsPerStep(rebalance.incumbent, costs);
  const GainPrice price{.predicted = gained,
                        .replicas = replicas,
                        .migration = migration.seconds,
                        .token_seconds = costs.token_seconds};
  const double saved = rebalance.learned != nullptr
                           ? ValueOf(CappedBy(costs, *rebalance.learned), price)
                           : Finite((gained - replicas) * static_cast<double>(costs.horizon_steps));
  decision.net_gain_seconds = Finite(saved - migration.seconds);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CandidateDecision> EvaluateCandidate(const CandidateInput& question) {
  EPLB_ASSIGN_OR_RETURN(const WithinBudget within_budget,
                        FitToBudget(question, question.candidate));
  CandidateDecision decision(question.incumbent);
  SayWhatIsLeftOut(question, within_budget, decision);
  Costs costs = question.prices != nullptr ? *question.prices : question.costs;
  costs.expert = question.migration;
  const RebalanceInput rebalance{.load = question.load,
                                 .num_steps = question.num_steps,
                                 .incumbent = question.incumbent,
                                 .candidate = within_budget.target,
                                 .min_gain = question.min_gain,
                                 .costs = costs,
                                 .learned = question.learned,
                                 .speeds = question.speeds,
                                 .split = question.split,
                                 .recent = question.recent,
                                 .predictions = question.predictions,
                                 .measured = question.measured_balancedness,
                                 .load_of = question.load_of};
  EPLB_ASSIGN_OR_RETURN(const RebalanceDecision judged, EvaluateRebalance(rebalance));
  EPLB_RETURN_IF_ERROR(NoteFigures(rebalance, judged, within_budget, decision));
  if (within_budget.moves.empty()) {
    decision.reason =
        absl::StrCat(Steps(question), ": kept, the policy changes nothing that may move");
  } else {
    EPLB_RETURN_IF_ERROR(Settle(question, within_budget, judged, decision));
  }
  if (PricesAreKnown(costs) && !decision.chunks.empty()) {
    decision.migration_seconds = judged.migration.seconds;
  }
  return decision;
}

}  // namespace eplb::core
