// One run of daemons, jobs and everything that can go wrong between them, decided by a seed; then
// the faults stop, and everything has to come to rest. All the while, what a daemon shows as
// measured has to be what the ranks' steps give (truth.h).
//
// Real: core::Core, SharedMember with Member and its windows, the policies, the validator.
// Simulated: clock, network (latency, streams cut with a lag on either end, partitions), disk
// (writes that fail, a store that is lost or rolled back), processes (killed between any two
// effects, frozen, drained; ranks that die, hang or lose the result of a vote), launcher and
// checkpoints, a run beside one that hangs or trains on, a second daemon on another store that
// stays, an operator who pauses. promises.h says what must not be forgotten meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace eplb::simulation {

struct Outcome {
  std::vector<std::string> violations;    // empty: the run is right
  std::map<std::string, int64_t> counts;  // counts of events, by name
};

// verbose: prints what happens to stdout. cost: some 10 ms.
Outcome Simulate(uint64_t seed, bool verbose);

// How often each thing has to happen at least in `seeds` runs, so that the simulation cannot go
// blind: what is missing, one line each.
std::vector<std::string> FindBlindSpots(const std::map<std::string, int64_t>& counts,
                                        int64_t seeds);

}  // namespace eplb::simulation
