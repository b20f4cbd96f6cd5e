// Beginning and end of a job's runs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

// Returns the positions of the job's ranks. errors: as RankGrid::Make.
absl::StatusOr<RankGrid> GridOf(const wire::Hello& hello);

// errors: as Topology::Make and GridOf.
absl::StatusOr<Run> MakeRun(const wire::Hello& hello);

// Replaces the current run: its sessions end, its proposal and windows are void; RECOVERING.
void StartRun(DecisionContext& context, Job& job, Run run);

// The candidate becomes the current run.
void StartCandidate(DecisionContext& context, Job& job);

// No more proposals to the current run; the one in flight is cancelled; RECOVERING. Its sessions
// may stay, unless a candidate is there to replace it.
void EndRun(DecisionContext& context, Job& job, v1::RunEnding how, const std::string& reason);

// Forgets a run that was not served yet and ends its sessions with this status:
// Unavailable when its ranks may come back.
void DropCandidate(DecisionContext& context, Job& job, const absl::Status& why);

// The session ended without Goodbye.
void HandleAway(DecisionContext& context, Sender sender, const std::string& reason);
void Handle(DecisionContext& context, Sender sender, const wire::Goodbye& goodbye);
// The rank goes on with another daemon. Once no rank is left the run is lost to this one.
void Handle(DecisionContext& context, Sender sender, const wire::Moved& moved);

// Ends runs with a rank away for longer than session_grace.
void EndLostRuns(DecisionContext& context, Job& job);

}  // namespace eplb::core
