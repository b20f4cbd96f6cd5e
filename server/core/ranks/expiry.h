// Which jobs the daemon still knows.
#ifndef EPLB_SERVER_CORE_RANKS_EXPIRY_H_
#define EPLB_SERVER_CORE_RANKS_EXPIRY_H_

#include "server/core/state/decision_context.h"

namespace eplb::core {

// A rank of its newest run, or of one that gathers, is connected.
bool HasSession(const Job& job);

// Forgets jobs without a connected rank for job_expiry; only their audit log stays. Not those that
// somebody stopped (paused, observed, in QUARANTINE): nobody would see that they go on.
void ExpireJobs(DecisionContext& context);

// For one more job in a full table: forgets the jobs that never reached the store and have no
// session, and if there are none, the one that ended longest ago, or else the one whose ranks have
// been away longest, for session_grace at least. Those that somebody stopped go last.
void MakeRoom(DecisionContext& context);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_RANKS_EXPIRY_H_
