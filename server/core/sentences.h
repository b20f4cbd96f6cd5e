// Small pieces of the sentences that name ranks, steps and digests.
#ifndef EPLB_SERVER_CORE_SENTENCES_H_
#define EPLB_SERVER_CORE_SENTENCES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "placement/digest.h"
#include "server/core/state.h"

namespace eplb::core {

// "rank 3", "ranks 3, 5" or "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 12 more".
std::string RankList(const std::vector<int32_t>& ranks);

// The first 12 hexadecimal digits: enough to compare by eye.
std::string ShortHex(const Digest& digest);

std::string PhaseName(Phase phase);  // "HELD", ...

// Whom the job's state waits for; empty when for nobody. cost: O(world_size).
std::string WaitingFor(const Job& job);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_SENTENCES_H_
