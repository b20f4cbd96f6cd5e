// What no daemon may forget of a job, beside its placement and version numbers: the store holds it,
// and ranks carry it for a daemon that has lost its store.
#ifndef EPLB_SERVER_CORE_MEMORY_H_
#define EPLB_SERVER_CORE_MEMORY_H_

#include "proto/wire/job_memory.h"
#include "server/core/turn.h"

namespace eplb::core {

// What the job remembers now.
wire::JobMemory MemoryOf(const Job& job);

// After a change of what MemoryOf tells: it is newer than all before it, written when the placement
// in force is known, and told to the ranks that carry it.
void Remember(Turn& turn, Job& job);

// Takes over what a store or a rank held, when it is newer than what the job remembers.
void Recall(State& state, Job& job, const wire::JobMemory& memory);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_MEMORY_H_
