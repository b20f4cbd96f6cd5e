// Small pieces of the sentences that name ranks, steps and digests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "placement/digest.h"
#include "server/core/state/state.h"

namespace eplb::core {

// "rank 3", "ranks 3, 5" or "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"; "all 8 ranks" when they
// are more than one and as many as `world_size`.
std::string RankList(const std::vector<int32_t>& ranks, int32_t world_size = 0);

// The first 12 hexadecimal digits: enough to compare by eye.
std::string ShortHex(const Digest& digest);

v1::JobState StateOf(Phase phase);
v1::JobState StateOf(const Job& job);

// "is RECOVERING, waiting for rank 3 to register", or "has ended (FINISHED): all 8 ranks
// finished".
std::string StateText(const Job& job);

// "less even than without EPLB for 3 windows in a row: balancedness 0.851 against 0.876 on steps
// 40..49"; empty below kWorseWindows windows in a row.
std::string WorseText(const Windows& windows);

// Ranks or operator that the job's state waits for; empty when it waits for none. cost:
// O(world_size).
std::string WaitingFor(const Job& job);

}  // namespace eplb::core
