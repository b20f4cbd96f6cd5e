// The numbers of a job's placements: each is given out once, and stands for what ran under it
// first.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "placement/digest.h"
#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

// Keeps what the job ran as `version`, for the newest kMaxRan numbers.
void NoteRan(Job& job, int64_t version, const Digest& digest);

// Audits, once for each run, that it runs a placement under a number which had another one.
void TellReusedVersion(DecisionContext& context, Job& job, Run& run, const wire::Hello& hello);

// errors: InvalidArgument for a version that nobody can have proposed: a rank says in its Hello
// which ones it has seen, and every other is this daemon's own.
absl::Status CheckGivenOut(const Job& job, const char* message, int64_t version);

// Answers a rank that asks for a version number, after storing a next_version above it. If the job
// is in no store (BelongsInStore), the ranks bring their numbers back. errors: NotFound for an
// unknown job, Unavailable while the daemon drains or cannot store it.
void HandleReserveVersion(DecisionContext& context, const ReserveVersion& ask);

}  // namespace eplb::core
