// HELD: find out what the ranks run before anything is proposed to them. They are the authority.
#ifndef EPLB_SERVER_CORE_DECISIONS_HELD_H_
#define EPLB_SERVER_CORE_DECISIONS_HELD_H_

#include <cstdint>
#include <string>

#include "proto/wire/messages.h"
#include "server/core/state/turn.h"

namespace eplb::core {

// Retracts what ranks are still READY for, then waits. REQUIRES: no proposal in flight.
void EnterHeld(Turn& turn, Job& job, const std::string& reason);

// IDLE when every rank said Hello, is READY for nothing and runs one placement whose body is known;
// asks a rank for the body when it is not. Does nothing in other states.
void TryRelease(Turn& turn, Job& job);

// IDLE when all ranks run the known placement, else HELD.
void EnterIdleOrHeld(Turn& turn, Job& job);

// After `rank` said what it runs, outside a proposal: back to HELD when it is not what is known.
void Recheck(Turn& turn, Job& job, int32_t rank);

void HandlePlacementBody(Turn& turn, Speaker speaker, const wire::PlacementBody& body);

// Asks again, or somebody else, once per prepare_deadline.
void NudgeHeld(Turn& turn, Job& job);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_DECISIONS_HELD_H_
