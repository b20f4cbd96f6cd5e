// The proposal in flight: PREPARING, RESOLVING, RETRACTING. The ranks' own vote is the commit
// point; what is counted here only records it.
#ifndef EPLB_SERVER_CORE_PROPOSAL_H_
#define EPLB_SERVER_CORE_PROPOSAL_H_

#include <string>

#include "proto/wire/messages.h"
#include "server/core/turn.h"

namespace eplb::core {

// Proposes the next of job.chunks to all ranks, after storing a next_version above it.
// REQUIRES: job.known, job.chunks.rest not empty, no proposal in flight.
void ProposeNextChunk(Turn& turn, Job& job);

void HandleReady(Turn& turn, Speaker speaker, const wire::Ready& ready);
void HandleNack(Turn& turn, Speaker speaker, const wire::Nack& nack);
void HandleApplied(Turn& turn, Speaker speaker, const wire::Applied& applied);
void HandleFailed(Turn& turn, Speaker speaker, const wire::Failed& failed);

// A rank of the current incarnation is connected again while a proposal is in flight: what it runs
// counts as Applied, what it is READY for as Ready, and what it missed is sent again.
void HandleRejoin(Turn& turn, Speaker speaker, const wire::Hello& hello);
// A rank said Goodbye while a proposal is in flight: it holds nothing any more.
void HandleRankFinished(Turn& turn, Speaker speaker);

// Asks every rank that has not finally answered to forget the proposal; skips the next decisions
// when `back_off`.
void StartRetract(Turn& turn, Job& job, const std::string& reason, bool back_off);

// No proposals until a new incarnation; training goes on.
void Quarantine(Turn& turn, Job& job, const std::string& reason);

// Skips twice as many decisions as the last time, at most 64.
void BackOffMore(Job& job);

// Acts on the deadlines of PREPARING, RESOLVING and RETRACTING.
void CheckProposalDeadline(Turn& turn, Job& job);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_PROPOSAL_H_
