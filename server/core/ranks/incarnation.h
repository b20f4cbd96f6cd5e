// Beginning and end of a job's launches.
#ifndef EPLB_SERVER_CORE_RANKS_INCARNATION_H_
#define EPLB_SERVER_CORE_RANKS_INCARNATION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "proto/wire/messages.h"
#include "server/core/state/turn.h"

namespace eplb::core {

// Where the job's ranks stand. errors: as RankGrid::Make.
absl::StatusOr<RankGrid> GridOf(const wire::Hello& hello);

// errors: as Topology::Make and GridOf.
absl::StatusOr<Incarnation> MakeIncarnation(const wire::Hello& hello);

// Replaces the current incarnation: its sessions end, its proposal and windows are void; HELD.
void StartIncarnation(Turn& turn, Job& job, Incarnation incarnation);

// The candidate becomes the current incarnation.
void StartCandidate(Turn& turn, Job& job);

// No more proposals to the current incarnation; the one in flight is retracted; HELD. Its sessions
// may stay, unless a candidate is there to replace it.
void EndIncarnation(Turn& turn, Job& job, RunEnding how, const std::string& reason);

// Forgets an incarnation that was not served yet and ends its sessions with this status:
// Unavailable when its ranks may come back.
void DropCandidate(Turn& turn, Job& job, const absl::Status& why);

// The session ended without Goodbye.
void HandleAway(Turn& turn, Speaker speaker, const std::string& reason);
void HandleGoodbye(Turn& turn, Speaker speaker, const wire::Goodbye& goodbye);
// The rank goes on with another daemon. Once nobody is left the incarnation is lost to this one.
void HandleMoved(Turn& turn, Speaker speaker, const wire::Moved& moved);

// Ends incarnations with a rank away for longer than session_grace.
void EndLostIncarnations(Turn& turn, Job& job);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_RANKS_INCARNATION_H_
