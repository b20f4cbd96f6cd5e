// Which ranks and layers of a job count no tokens although steps advance.
#pragma once

#include <string>

#include "proto/wire/messages.h"
#include "server/core/state/state.h"

namespace eplb::core {

// Reports without a token after which a rank or a layer is said to count nothing. The reports are
// as long as the newest one.
inline constexpr int kSilentIntervals = 2;

// Takes over which layers of a checked report have tokens. cost: O(L) where they have, else
// O(L * E).
void NoteCounts(const wire::LoadReport& report, Rank& rank);

// Returns one sentence that names the layers in which no reporter of the job counts, and the
// reporters without counts in layers that others of their pipeline stage count. Empty: all count.
// Reporters that are behind the newest complete window are in neither. cost: O(ranks * L), O(ranks)
// while all count. REQUIRES: the job has a run.
std::string NotCountingReason(const Job& job);

}  // namespace eplb::core
