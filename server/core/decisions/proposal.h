// The numbers of a job's placements: each is given out once, and stands for what ran under it
// first.
#ifndef EPLB_SERVER_CORE_DECISIONS_PROPOSAL_H_
#define EPLB_SERVER_CORE_DECISIONS_PROPOSAL_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "placement/digest.h"
#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

// Keeps what the job ran as `version`, for the newest kMaxRan numbers.
void NoteRan(Job& job, int64_t version, const Digest& digest);

// Audits, once for each run, that it runs a placement under a number which had another one.
void TellReusedVersion(DecisionContext& context, Job& job, Run& run, const wire::Hello& hello);

// errors: InvalidArgument for a version that no daemon can have proposed: a rank says in its Hello
// which ones it has seen, and every other is this daemon's own.
absl::Status CheckGivenOut(const Job& job, const char* message, int64_t version);

// Stores a next_version above the number that it replies with; the caller of the event owns it.
// Answers a rank that asks for a version number. If the job is in no store (BelongsInStore), the
// ranks bring their numbers back. errors: NotFound for an unknown job, Unavailable while the daemon
// drains or cannot store it.
void HandleReserveVersion(DecisionContext& context, const ReserveVersion& ask);

// The proposal in flight: PREPARING, VOTING, CANCELLING. The ranks' own vote is the commit
// point; what is counted here only records it.

// Proposes the next of job.chunks to all ranks, after storing a next_version above it, together
// with the change that asked for it. REQUIRES: job.last_known, job.chunks.rest not empty, no
// proposal in flight.
void ProposeNextChunk(DecisionContext& context, Job& job,
                      std::optional<DoneRequest> done = std::nullopt);

// A rank that is final has said the last about the proposal in flight.
bool IsFinal(const Rank& rank);
// Keeps the proposal's counts of answers. Conclude then looks whether they end the state.
void SetAnswer(Proposal& proposal, Rank& rank, Answer answer);
void Conclude(DecisionContext& context, Job& job);

// Asks one rank to forget the proposal in flight.
void CancelFrom(DecisionContext& context, const Rank& rank, const Proposal& proposal);
// Asks every rank that has not finally answered to forget the proposal; skips the next decisions
// when `back_off`.
void StartCancel(DecisionContext& context, Job& job, const std::string& reason, bool back_off);

// No proposals until a new run; training goes on.
void Quarantine(DecisionContext& context, Job& job, const std::string& reason);

// Skips twice as many decisions as the last time, at most 64.
void BackOffMore(Job& job);

// Acts on the deadlines of PREPARING, VOTING and CANCELLING.
void CheckProposalDeadline(DecisionContext& context, Job& job);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_DECISIONS_PROPOSAL_H_
