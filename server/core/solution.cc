#include "server/core/solution.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/backtest/auto_planner.h"
#include "placement/policies/registry.h"
#include "server/core/decisions/question.h"

namespace eplb::core {

absl::StatusOr<Placement> SolveRequest(const Solve& request, const std::atomic<bool>* abandoned) {
  if (request.load == nullptr || request.previous == nullptr) {
    return absl::InternalError("a request to solve has no load or no previous placement");
  }
  if (request.hierarchy == Hierarchy::kSoft && TraitsOf(request.policy_name).follows_reference) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy ", request.policy_name, " does not take hierarchy soft"));
  }
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy,
                        MakePolicy(request.policy_name, {.hierarchy = request.hierarchy}));
  std::vector<Load> recent;
  recent.reserve(request.recent.size());
  for (const std::shared_ptr<const Load>& window : request.recent) recent.push_back(*window);
  return SolveAligned(*policy, {.load = *request.load,
                                .topology = request.previous->topology(),
                                .previous = request.previous.get(),
                                .speeds = request.speeds.get(),
                                .split = request.split,
                                .recent = recent,
                                .abandoned = abandoned});
}

Solved Solution(const Solve& request, absl::StatusOr<Placement> placement,
                std::shared_ptr<const AutoOutcome> chosen) {
  Solved solved{.job = request.job,
                .solve_id = request.solve_id,
                .placement = std::move(placement),
                .chosen = std::move(chosen)};
  const bool is_due = solved.chosen == nullptr || solved.chosen->answer;
  if (request.question == nullptr || !solved.placement.ok() || !is_due) return solved;
  const AutoAnswer* const answer = solved.chosen == nullptr ? nullptr : &*solved.chosen->answer;
  solved.answer =
      std::make_shared<const DecisionAnswer>(Decide(*request.question, *solved.placement, answer));
  return solved;
}

Solved AnswerSolve(const Solve& request, const std::atomic<bool>* abandoned) {
  if (request.choose == nullptr || request.previous == nullptr) {
    absl::StatusOr<Placement> placement = SolveRequest(request, abandoned);
    if (abandoned != nullptr && *abandoned) placement = absl::CancelledError("nobody waits for it");
    return Solution(request, std::move(placement));
  }
  absl::StatusOr<AutoOutcome> outcome = AskAuto(*request.choose, *request.previous, abandoned);
  if (!outcome.ok()) return Solution(request, outcome.status());
  absl::StatusOr<Placement> placement = *request.previous;
  if (outcome->answer) placement = outcome->answer->placement;
  return Solution(request, std::move(placement),
                  std::make_shared<const AutoOutcome>(*std::move(outcome)));
}

}  // namespace eplb::core
