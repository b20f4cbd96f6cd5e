// Rebalances as traces: one decision as the daemon saw it, and all boundaries of a run as its ranks
// logged them. Only what is known to have happened is shown; "not_known" of the metadata says what
// is missing.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_REBALANCE_TRACE_H_
#define EPLB_CLIENT_CLI_REBALANCE_TRACE_H_

#include <cstdint>
#include <span>
#include <string>

#include "client/run_log/run_directory.h"

namespace eplb::v1 {
class ChunkRankTimes;
class ChunkTimes;
class Plan;
}  // namespace eplb::v1

namespace eplb::cli {

// One process, the daemon: the window, the solver, each chunk with its ranks' PREPARED and their
// vote and switch, and a track for each rank that is known by name, in the daemon's time. Where in
// "vote and switch" a rank's boundary lay is known to the rank alone. plan: as GetPlan answers.
std::string PlanTrace(const std::string& job, const v1::Plan& plan);

// When its solver ended, microseconds since 1970; 0: not known.
int64_t SolveEndMicros(const v1::Plan& plan);

// The rank whose PREPARED was the last of all; null where that one has no time, or is not known.
const v1::ChunkRankTimes* SlowestOf(const v1::ChunkTimes& chunk);

// A process for each rank: when it became PREPARED, its boundaries with votes, transfer, commit and
// rebuild, and the rounds of the transfer on tracks of their own, for rounds may overlap.
// directory: told in the metadata. cost: O(spans log spans).
std::string RunTrace(const std::string& directory, std::span<const RankTimeline> timelines);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_REBALANCE_TRACE_H_
