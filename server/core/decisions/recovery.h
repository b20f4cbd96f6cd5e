// RECOVERING: find out what the ranks run before anything is proposed to them. They are the
// authority.
#pragma once

#include <cstdint>
#include <string>

#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

// Cancels what ranks are still PREPARED for, then waits. REQUIRES: no proposal in flight.
void EnterRecovery(DecisionContext& context, Job& job, const std::string& reason);

// IDLE when every rank said Hello, is PREPARED for nothing and runs one placement whose body is
// known; asks a rank for the body when it is not. Does nothing in other states.
void TryRelease(DecisionContext& context, Job& job);

// IDLE when all ranks run the known placement, else RECOVERING.
void EnterIdleOrRecovery(DecisionContext& context, Job& job);

// After `rank` said what it runs, outside a proposal: back to RECOVERING when it is not what is
// known.
void Recheck(DecisionContext& context, Job& job, int32_t rank);

void Handle(DecisionContext& context, Sender sender, const wire::PlacementBody& body);

// Asks again, or asks another rank, once per prepare_deadline.
void RetryRecovery(DecisionContext& context, Job& job);

}  // namespace eplb::core
