// Answers of a solver whose planner proposes a given placement.
#pragma once

#include <optional>
#include <utility>

#include "server/core/decisions/question.h"
#include "server/core/solution.h"

namespace eplb::core {

// Returns the answer to `request` whose placement is given, on the newest windows of a decision.
inline Solved Answering(const Solve& request, absl::StatusOr<Placement> placement) {
  if (!placement.ok()) return Solution(request, placement.status());
  const BacktestOptions& options = request.question->planner.options;
  Candidate candidate;
  if (!options.candidates.empty()) candidate = options.candidates.front();
  ExpectedLoad expected = ExpectLoad(candidate.estimate, request.question->planner.windows).value();
  return Solution(request,
                  PlannerOutcome{.answer = PlannerAnswer{std::move(expected), *std::move(placement),
                                                         std::nullopt, candidate}});
}

}  // namespace eplb::core
