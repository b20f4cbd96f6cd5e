// The proposal in flight: PREPARING, VOTING, CANCELLING. The ranks' own vote is the commit point;
// what is counted here only records it.
#pragma once

#include <optional>
#include <string>

#include "server/core/state/decision_context.h"

namespace eplb::core {

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
