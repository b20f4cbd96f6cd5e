// The work of a solver for one Solve.
#ifndef EPLB_SERVER_CORE_SOLUTION_H_
#define EPLB_SERVER_CORE_SOLUTION_H_

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"

#include "placement/placement.h"
#include "server/core/values/events.h"

namespace eplb::core {

// The policy's answer, aligned to the request's `previous`, whose topology it has.
// abandoned: as PolicyInput's. errors: those of MakePolicy, Policy::Solve and Align.
absl::StatusOr<Placement> SolveRequest(const Solve& request,
                                       const std::atomic<bool>* abandoned = nullptr);

// The answer of a policy, with what follows from it. chosen: of one that chooses, else null.
Solved Solution(const Solve& request, absl::StatusOr<Placement> placement,
                std::shared_ptr<const AutoOutcome> chosen = nullptr);

// Both. Of a policy that chooses `placement` is `previous` as long as no decision is due.
Solved AnswerSolve(const Solve& request, const std::atomic<bool>* abandoned = nullptr);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_SOLUTION_H_
