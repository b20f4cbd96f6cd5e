// Whether balancing has stopped although the job trains, and because of whom: what no state tells.
#ifndef EPLB_SERVER_CORE_STALL_H_
#define EPLB_SERVER_CORE_STALL_H_

#include <string>

#include "absl/time/time.h"

namespace eplb::core {

struct Job;
struct State;
struct Turn;

// A stall, and the end of one, must last so long before it is told.
inline constexpr absl::Duration kStallSettles = absl::Seconds(5);
// Windows that should be complete and are not.
inline constexpr int kStallWindows = 5;

// name: store, state, lost, hung, windows, decisions, withdrawn; candidate, refused: of another
// launch than the one in force; empty: balancing goes on, or nobody trains. reason: one sentence.
struct Stall {
  std::string name;
  std::string reason;
};

// What was told of a job.
struct StallWatch {
  Stall told;
  absl::Time differs_since = absl::InfiniteFuture();  // what is seen is not what was told
};

// What is seen now; the first that applies. cost: O(ranks).
Stall StallOf(const State& state, const Job& job, absl::Time now);

// At a Tick: tells a stall that lasts, and its end, with one event each.
void WatchStall(Turn& turn, Job& job);

// The last step of the newest window that should be complete: one window may be under way. -1: none
// yet since the launch is known here.
int64_t DueWindow(const Job& job);
// Share of reporters whose newest report reaches DueWindow; 0: no such window yet.
double CoverageNow(const Job& job);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_STALL_H_
