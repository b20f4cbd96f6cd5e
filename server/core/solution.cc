#include "server/core/solution.h"

#include <memory>
#include <utility>

#include "server/core/decisions/question.h"

namespace eplb::core {

Solved Solution(const Solve& request, absl::StatusOr<PlannerOutcome> planned) {
  Solved solved{.job = request.job, .solve_id = request.solve_id, .planned = nullptr};
  if (!planned.ok()) {
    solved.planned = planned.status();
    return solved;
  }
  if (planned->answer) {
    solved.answer =
        std::make_shared<const DecisionAnswer>(Decide(*request.question, *planned->answer));
  }
  solved.planned = std::make_shared<const PlannerOutcome>(*std::move(planned));
  return solved;
}

Solved AnswerSolve(const Solve& request, const std::atomic<bool>* abandoned) {
  const DecisionQuestion& question = *request.question;
  return Solution(request, AskPlanner(question.planner, *question.incumbent, abandoned));
}

}  // namespace eplb::core
