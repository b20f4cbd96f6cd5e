// When a job's policy is asked, and what follows from its answer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "server/core/decisions/evaluate_candidate.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

// Compares earlier predictions with a window that completed.
void WatchWindow(const DecisionContext& context, Job& job);
// Asks for a solution when it is time to decide. Does nothing while MayDecide is not OK.
void MaybeSolve(DecisionContext& context, Job& job);

// Why a decision cannot be made now, whatever the pace is: it is made in IDLE; not when paused, in
// the freeze, while a rank is not connected, and while the daemon drains. behind_chunk: also while
// a chunk is in flight, where its chunks replace those that are still to be proposed. errors:
// FailedPrecondition, one sentence.
absl::Status MayDecide(const State& state, const Job& job, bool behind_chunk = false);
struct Request {
  bool force = false;  // propose even if it does not pay
  // Nothing is proposed, and later decisions are as if there had been no request.
  bool preview = false;
  std::string actor = {};
};
// Asks for a solution for the newest complete windows, also those that were decided on before.
// REQUIRES: MayDecide is OK. errors: as SumSince.
absl::Status SolveNow(DecisionContext& context, Job& job, const Request& request);

void HandleSolved(DecisionContext& context, const Solved& solved);
// Its deadline counts from now on.
void HandleSolveStarted(DecisionContext& context, const SolveStarted& started);
// A solve may wait so many deadlines for its turn at the solver.
inline constexpr int kSolveWaits = 5;
// Returns how long the policy of a job that solves may compute, or its solve may wait before that.
absl::Duration SolveDeadline(const Config& config, const Job& job);
// Gives up a solve that is late, or that waited too long; the reason names the jobs that the solver
// works for.
void CheckSolveDeadline(DecisionContext& context, Job& job);
// Forgets the solution that is being computed; a SOLVING job is IDLE. `failed`: the policy is to
// blame.
void AbandonSolve(DecisionContext& context, Job& job, const std::string& reason, bool failed);

// Proposes these chunks, the first one at once, as ProposeNextChunk. The plan is recorded.
// REQUIRES: chunks is not empty, IDLE or SOLVING, plan.result is PROPOSED.
struct Bundle {
  std::vector<Chunk> chunks;
  std::vector<double> falls = {};  // see Chunks
  v1::Plan plan;
  bool despite_pause = false;  // see Chunks
  std::optional<DoneRequest> done = std::nullopt;
};
void ProposeChunks(DecisionContext& context, Job& job, Bundle bundle);

}  // namespace eplb::core
