// State that a job must keep across restarts of its daemon, and the bounds of the numbers that a
// rank can raise: versions, terms, runs and steps.
#pragma once

#include <cstdint>
#include <string>

#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

inline constexpr int64_t kMaxNumber = int64_t{1}
                                      << 62;  // largest number in any message, with room to add
// Most by which one Hello may raise a number of its job. A rank that invents numbers needs 2^30
// Hellos to reach kMaxNumber, so a job's name is never used up. A store that lost its job lost
// fewer.
inline constexpr int64_t kMaxJump = int64_t{1} << 32;

// The memory is state of a job, beside its placement and version numbers, that no daemon may
// forget. The store holds it, and ranks carry it for a daemon that has lost its store.

// Returns the job's memory now.
wire::JobMemory MemoryOf(const Job& job);

// After a change of what MemoryOf tells. The memory is newer than all before it; the next write of
// the job holds it, at the latest the one at the end of this decision. Behind that write the ranks
// get it: all that are connected, or few of them, since one that comes back is enough.
void Remember(Job& job, Tell tell = Tell::kFew);

// After a step of the current run was told: remembers the time between two reports once three
// say it, and again when it is twice as long or half.
void RememberReportTime(Job& job);

// Sends the newest memory to the ranks that are to carry it. Goes behind its Store.
void TellMemory(DecisionContext& context, Job& job);
// Sends it to one rank, which has been welcomed.
void TellMemory(DecisionContext& context, const Job& job, const Rank& rank);

// The run never comes back. A name that is known gets its number, if it had none.
void AddGone(Job& job, const wire::EndedRun& gone);

// Takes over what the store held. Before any rank of the job has come.
void Recall(State& state, Job& job, const wire::JobMemory& memory);

// Takes over what a rank carried, when it is newer than what the job remembers and fits its Hello.
// It stops a job, but never lifts what the store or this daemon remembers as stopped. A job that is
// new to a store which was moved aside, but had a run before, is paused.
void RecallFrom(DecisionContext& context, Job& job, const wire::Hello& hello);

// A run begins. What another one earned ends with it; what was recalled of this one stays.
void BeginRun(Job& job, const std::string& run_id);

}  // namespace eplb::core
