// Prices of a job's decisions: configured and measured costs, and what they allow of chunks.
#pragma once

#include <cstdint>
#include <string>

#include "placement/backtest/switch_time.h"
#include "placement/decision/cost.h"
#include "server/core/state/chunking.h"
#include "server/core/state/state.h"

namespace eplb::core {

// True if the job's policy chooses among others, at a pace of its own.
bool Chooses(const Job& job);

// Returns the least number of steps between two decisions. If the settings have none, a policy that
// chooses decides at every window, and every other policy after kUsualEverySteps.
inline constexpr int32_t kUsualEverySteps = 50;
int32_t EverySteps(const Job& job);

// Returns the configured costs with the job's bytes. The EP groups that split the tokens share the
// time of a token; pipeline stages and expert-tensor-parallel ranks do not.
Costs CostsOf(const State& state, const Job& job);
// The same, with measured prices where the configuration has none. A policy that chooses gets the
// price of a token from the time of a step: its fullest GPUs are taken to compute experts for
// kExpertsShareOfStep of it. Such a job is not priced until a window and the time of a step were
// measured. The price of a byte, and the fixed time of a migration, are those of the newest
// switches; before the first one it is that of a fast link: were it assumed to be dear, nothing
// might ever be measured.
Costs PricesOf(const State& state, const Job& job);
// Returns the limits of the job's next chunks. REQUIRES: job.current.
BoundaryLimits LimitsOf(const Job& job);
// Returns the time from the end of a window until a decision is in force, as the back-test takes
// it: the ranks' votes and staging, the newest solution and the measured pauses. A proposal takes
// kMessageSeconds besides the solution, and at least a step. REQUIRES: job.current.
inline constexpr double kMessageSeconds = 0.05;
SwitchTime SwitchTimeOf(const Job& job);
// Returns why the next chunk may not follow; empty if it may. Chunks of fewer bytes show that it
// would take longer than migration.max_pause, or the load that it was decided on is older than
// kMostIntervals of every_steps and kMostVotes of vote_every.
inline constexpr int64_t kMostIntervals = 8;
inline constexpr int64_t kMostVotes = 64;
std::string WhyNotNextChunk(const Job& job);

}  // namespace eplb::core
