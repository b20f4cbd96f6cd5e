// The work of a solver for one Solve.
#pragma once

#include <atomic>

#include "absl/status/statusor.h"

#include "placement/backtest/planner.h"
#include "server/core/decisions/question.h"
#include "server/core/values/events.h"

namespace eplb::core {

// cost: that of EvaluateCandidate. threads: safe.
DecisionAnswer Decide(const DecisionQuestion& question, const PlannerAnswer& answer);

// Returns the planner's outcome with the decision that follows from it.
Solved Solution(const Solve& request, absl::StatusOr<PlannerOutcome> planned);

// Asks the planner and decides. abandoned: as PolicyInput's.
Solved AnswerSolve(const Solve& request, const std::atomic<bool>* abandoned = nullptr);

}  // namespace eplb::core
