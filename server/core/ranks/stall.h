// Detects that balancing has stopped although the job trains, and which part stopped it, where no
// state shows it.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

#include "server/core/state/decision_context.h"

namespace eplb::core {

// A stall, and the end of one, must last so long before it is told.
inline constexpr absl::Duration kStallSettles = absl::Seconds(5);
// Windows that should be complete and are not.
inline constexpr int kStallWindows = 5;
inline constexpr int64_t kStallSteps = 50;  // steps of these windows together

// Returns the first stall that applies now. cost: O(ranks).
Stall StallOf(const State& state, const Job& job, absl::Time now);

// At a Tick: tells a stall that lasts, and its end, with one event each.
void WatchStall(DecisionContext& context, Job& job);

// The last step of the newest window that should be complete: one window may be under way. -1: none
// yet since the run is known here.
int64_t DueWindow(const Job& job);
// Returns the share of reporters whose newest report reaches DueWindow. Absent: no such window yet.
std::optional<double> CoverageNow(const Job& job);

}  // namespace eplb::core
