// One decision as a trace, as the daemon saw it. The trace shows only what is known to have
// happened; "not_known" in its metadata lists what is missing.
#pragma once

#include <cstdint>
#include <string>

namespace eplb::v1 {
class ChunkRankTimes;
class ChunkTimes;
class Plan;
}  // namespace eplb::v1

namespace eplb::cli {

// One process, the daemon: the window, the solver, each chunk with its ranks' PREPARED and their
// vote and switch, and a track for each rank that is known by name, in the daemon's time. Only the
// rank knows when its boundary was within "vote and switch". plan: an answer of GetPlan.
std::string PlanTrace(const std::string& job, const v1::Plan& plan);

// Time at which the solver ended, microseconds since 1970; 0: not known.
int64_t SolveEndMicros(const v1::Plan& plan);

// The rank whose PREPARED was the last of all; null if that rank has no time or is not known.
const v1::ChunkRankTimes* SlowestOf(const v1::ChunkTimes& chunk);

}  // namespace eplb::cli
