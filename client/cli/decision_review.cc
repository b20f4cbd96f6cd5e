#include "client/cli/decision_review.h"

#include <algorithm>
#include <utility>

#include "base/invalid_input.h"
#include "base/status_macros.h"

namespace eplb::cli {
namespace {

absl::StatusOr<const Placement*> PlacementOf(const RunDirectory& run, int64_t version) {
  const auto found =
      std::find_if(run.placements.begin(), run.placements.end(),
                   [version](const LoggedPlacement& one) { return one.version == version; });
  if (found != run.placements.end()) return &found->placement;
  return InvalidInput("run.json switched to version ", version,
                      ", placements.jsonl has none of it");
}

RunDecision DecisionOf(const std::vector<SwitchRecord>& chunks) {
  const SwitchRecord& first = chunks.front();
  RunDecision result{.decision = first.decision,
                     .policy = first.policy,
                     .asked_by = first.asked_by,
                     .reason = first.reason,
                     .decided_first_step = first.decided_first_step,
                     .decided_last_step = first.decided_last_step,
                     .switch_steps = {},
                     .until_next = {}};
  for (const SwitchRecord& chunk : chunks) {
    result.switch_steps.push_back(chunk.step);
    result.bytes_moved += chunk.bytes_moved;
    result.pause_seconds = std::max(result.pause_seconds, chunk.pause_seconds);
  }
  return result;
}

}  // namespace

absl::StatusOr<std::vector<RunDecision>> ReviewDecisions(
    const RunDirectory& run, const std::vector<RunPlacement>& placements) {
  const std::vector<std::vector<SwitchRecord>> chunks = ByDecision(run.report.switches);
  const auto num_steps = static_cast<int64_t>(run.step_loads.size());
  const SplitMode split = run.report.split;
  std::vector<RunDecision> decisions;
  for (size_t i = 0; i < chunks.size(); ++i) {
    RunDecision decision = DecisionOf(chunks[i]);
    EPLB_ASSIGN_OR_RETURN(const Placement* const target,
                          PlacementOf(run, chunks[i].back().version));
    const int64_t first = decision.decided_first_step;
    const int64_t last = decision.decided_last_step;
    EPLB_ASSIGN_OR_RETURN(decision.before,
                          MeasuredBalancedness(run.step_loads, placements, {first, last}, split));
    const RunPlacement always{.step = 0, .placement = *target};
    EPLB_ASSIGN_OR_RETURN(decision.computed,
                          MeasuredBalancedness(run.step_loads, {&always, 1}, {first, last}, split));
    decision.until_next_first_step = decision.switch_steps.back() + 1;
    decision.until_next_last_step =
        i + 1 < chunks.size() ? chunks[i + 1].front().step : num_steps - 1;
    if (decision.until_next_first_step <= decision.until_next_last_step) {
      EPLB_ASSIGN_OR_RETURN(
          decision.until_next,
          MeasuredBalancedness(run.step_loads, placements,
                               {decision.until_next_first_step, decision.until_next_last_step},
                               split));
    }
    decisions.push_back(std::move(decision));
  }
  return decisions;
}

}  // namespace eplb::cli
