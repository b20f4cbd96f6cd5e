// Which jobs the daemon still knows.
#pragma once

#include "server/core/state/decision_context.h"

namespace eplb::core {

// A rank of its newest run, or of one that gathers, is connected.
bool HasSession(const Job& job);

// Forgets jobs without a connected rank for job_expiry; only their audit log stays. Not those that
// an operator stopped (paused, observed, in QUARANTINE): the operator would not see that they go
// on.
void ExpireJobs(DecisionContext& context);

// Makes room for one more job in a full table. Forgets the jobs that never reached the store and
// have no session. If there are none, forgets the job that ended longest ago, otherwise the job
// whose ranks have been away longest, for session_grace at least. Jobs that an operator stopped are
// forgotten last.
void MakeRoom(DecisionContext& context);

}  // namespace eplb::core
