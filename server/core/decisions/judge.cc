#include "server/core/decisions/judge.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "placement/align.h"
#include "placement/decision/rebalance.h"
#include "placement/evaluate.h"

namespace eplb::core {
namespace {

// The candidate without the layers that the ranks cannot, or must not, switch.
struct Affordable {
  explicit Affordable(const Placement& incumbent) : target(incumbent) {}

  Placement target;
  std::vector<LayerMove> moves;
  int64_t transfers = 0;
  double link_seconds = 0;
  std::vector<int32_t> left_out;
  int64_t rows_needed = 0;  // of the left out layer that needs most
  std::vector<int32_t> too_long;
  double longest_seconds = 0;  // of the layer that would take longest
  bool measured = false;       // that is what earlier chunks say, not the links
};

absl::StatusOr<Affordable> Afford(const Question& question, const Placement& candidate) {
  Costs costs = question.costs;
  costs.expert = question.migration;
  EPLB_ASSIGN_OR_RETURN(std::vector<LayerMove> moves,
                        MovesOf(question.incumbent, candidate, costs));
  Affordable result{question.incumbent};
  std::vector<LayerPlacement> kept;
  for (LayerMove& move : moves) {
    if (move.staging_rows > question.staging_rows) {
      result.left_out.push_back(move.next.layer.value);
      result.rows_needed = std::max<int64_t>(result.rows_needed, move.staging_rows);
    } else if (const double seconds =
                   std::max(move.link_seconds, LeastPause(question.measured, move.incoming_bytes));
               seconds > question.max_pause_seconds) {
      result.too_long.push_back(move.next.layer.value);
      if (seconds <= result.longest_seconds) continue;
      result.longest_seconds = seconds;
      result.measured = seconds > move.link_seconds;
    } else {
      result.transfers += move.transfers;
      result.link_seconds += move.link_seconds;
      kept.push_back(move.next);
      result.moves.push_back(std::move(move));
    }
  }
  EPLB_ASSIGN_OR_RETURN(result.target, question.incumbent.WithLayers(kept));
  return result;
}

std::string Steps(const Question& question) {
  return absl::StrCat("steps ", question.first_step, "..", question.last_step);
}

std::string Layers(const std::vector<int32_t>& layers) {
  return absl::StrCat("layer", layers.size() == 1 ? " " : "s ", absl::StrJoin(layers, ", "));
}

void SayWhatIsLeftOut(const Question& question, const Affordable& affordable, Verdict& verdict) {
  if (!affordable.left_out.empty()) {
    verdict.left_out = absl::StrFormat(
        "%s: %s left out, %d rows of staging on one GPU are needed and the ranks have %d",
        Steps(question), Layers(affordable.left_out), affordable.rows_needed,
        question.staging_rows);
  }
  if (!affordable.too_long.empty()) {
    verdict.too_long = absl::StrFormat(
        "%s: %s left out, a pause of %s is predicted%s and migration.max_pause is %s",
        Steps(question), Layers(affordable.too_long), SecondsText(affordable.longest_seconds),
        affordable.measured ? " from boundaries with fewer bytes" : "",
        SecondsText(question.max_pause_seconds));
  }
}

// Cuts `affordable` into chunks, with its figures in the sentence.
absl::Status Take(const Question& question, const Affordable& affordable,
                  const RebalanceVerdict& judged, Verdict& verdict) {
  EPLB_ASSIGN_OR_RETURN(verdict.chunks,
                        CutIntoBoundaries(question.incumbent, affordable.moves,
                                          {.layers_per_chunk = question.layers_per_chunk,
                                           .max_pause_seconds = question.max_pause_seconds,
                                           .seconds_per_byte = question.seconds_per_byte}));
  verdict.migration_seconds = judged.migration.seconds;
  absl::StrAppend(&verdict.reason, ", ",
                  CountText(static_cast<int64_t>(affordable.moves.size()), "layer"), " in ",
                  CountText(static_cast<int64_t>(verdict.chunks.size()), "chunk"), ", ",
                  CountText(affordable.transfers, "transfer"));
  if (question.costs.token_seconds > 0 && judged.migration.bytes > 0) {
    absl::StrAppend(&verdict.reason, ", ", BytesText(judged.migration.bytes));
  }
  return absl::OkStatus();
}

// Takes `affordable` when the rule says so; the reason either way.
absl::Status Settle(const Question& question, const Affordable& affordable,
                    const RebalanceVerdict& judged, Verdict& verdict) {
  verdict.reason = absl::StrCat(Steps(question), ": ", judged.reason);
  if (judged.rebalance) return Take(question, affordable, judged, verdict);
  if (!question.force) return absl::OkStatus();
  verdict.reason = absl::StrCat(Steps(question), ": forced; the rule alone says: ", judged.reason);
  return Take(question, affordable, judged, verdict);
}

// Back to where the record began, should the placements since have lost too much.
absl::Status ConsiderReturn(const Question& question, RebalanceQuestion rebalance,
                            Verdict& verdict) {
  EPLB_ASSIGN_OR_RETURN(const Placement start,
                        Align(question.incumbent, *rebalance.record.start()));
  EPLB_ASSIGN_OR_RETURN(const Affordable affordable, Afford(question, start));
  if (affordable.moves.empty()) return absl::OkStatus();
  EPLB_ASSIGN_OR_RETURN(const RebalanceVerdict judged,
                        JudgeReturn({.load = rebalance.load,
                                     .num_steps = rebalance.num_steps,
                                     .incumbent = rebalance.incumbent,
                                     .candidate = affordable.target,
                                     .min_gain = rebalance.min_gain,
                                     .steps_to_next = rebalance.steps_to_next,
                                     .costs = rebalance.costs,
                                     .record = rebalance.record}));
  return judged.rebalance ? Settle(question, affordable, judged, verdict) : absl::OkStatus();
}

absl::Status MeasureRebalance(const RebalanceQuestion& rebalance, const Affordable& affordable,
                              Verdict& verdict) {
  EPLB_ASSIGN_OR_RETURN(const Evaluation before, Evaluate(rebalance.load, rebalance.incumbent));
  EPLB_ASSIGN_OR_RETURN(const Evaluation after, Evaluate(rebalance.load, affordable.target));
  verdict.transfers = affordable.transfers;
  verdict.balancedness_before = before.mean_balancedness;
  verdict.balancedness_predicted = after.mean_balancedness;
  if (before.peak_load > 0) verdict.peak_fall = 1 - after.peak_load / before.peak_load;
  const Costs& costs = rebalance.costs;
  if (!costs.priced()) return absl::OkStatus();
  const double saved_per_step =
      (before.peak_load - after.peak_load) / rebalance.num_steps * costs.token_seconds -
      (ReplicaSecondsPerStep(affordable.target, costs) -
       ReplicaSecondsPerStep(rebalance.incumbent, costs));
  const double stall = affordable.moves.empty() ? 0 : costs.stall_seconds;
  verdict.net_gain_seconds = Finite(saved_per_step * static_cast<double>(costs.horizon_steps) -
                                    affordable.link_seconds - stall);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Verdict> Judge(const Question& question) {
  EPLB_ASSIGN_OR_RETURN(const Affordable affordable, Afford(question, question.candidate));
  Verdict verdict;
  SayWhatIsLeftOut(question, affordable, verdict);
  Costs costs = question.costs;
  costs.expert = question.migration;
  const TrackRecord none;
  const RebalanceQuestion rebalance{
      .load = question.load,
      .num_steps = static_cast<double>(question.last_step - question.first_step) + 1,
      .incumbent = question.incumbent,
      .candidate = affordable.target,
      .min_gain = question.min_gain,
      .steps_to_next = static_cast<double>(question.every_steps),
      .costs = costs,
      .record = question.record == nullptr ? none : *question.record};
  EPLB_ASSIGN_OR_RETURN(const RebalanceVerdict judged, JudgeRebalance(rebalance));
  EPLB_RETURN_IF_ERROR(MeasureRebalance(rebalance, affordable, verdict));
  if (affordable.moves.empty()) {
    verdict.reason =
        absl::StrCat(Steps(question), ": kept, the policy changes nothing that may move");
  } else {
    EPLB_RETURN_IF_ERROR(Settle(question, affordable, judged, verdict));
  }
  if (verdict.chunks.empty() && costs.priced() && rebalance.record.start().has_value()) {
    EPLB_RETURN_IF_ERROR(ConsiderReturn(question, rebalance, verdict));
  }
  return verdict;
}

}  // namespace eplb::core
