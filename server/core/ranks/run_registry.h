// Which run a job belongs to. Runs are numbered in the order in which they became the job's
// own: a lower one never comes back. A newcomer waits while the steps of the current one advance.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

// The run that this Hello belongs to: the job's own, or its candidate. One that comes first
// starts, or gathers as the candidate.
// errors: FailedPrecondition for one that never comes back, with what to do; Unavailable while
// another candidate is there; those of MakeRun.
absl::StatusOr<Run*> FindOrAddRun(DecisionContext& context, Job& job, const wire::Hello& hello);

// It owned the job under another daemon, later than the current run did.
bool OwnedItLater(const Job& job, const Run& run);

// True of a run whose processes live on after another one took its place. That it is refused
// says nothing about the job.
bool WasReplaced(const Job& job, const wire::Hello& hello);

// The run is over and never comes back. number: 0 when it was never the job's own.
void RememberGone(Job& job, const std::string& run_id, int64_t number);

// For what the candidate waits; empty when it may be served now, and when there is none.
std::string CandidateWaitsFor(const Job& job, absl::Time now);
// The candidate has all its ranks and waits only because the steps of the current run advance.
bool TakeOverRefused(const Job& job, absl::Time now);
// Starts the candidate when it waits for nothing.
void ServeCandidate(DecisionContext& context, Job& job);

// The number of a run that becomes the job's own now.
int64_t NumberOf(const Job& job, const Run& run);

}  // namespace eplb::core
