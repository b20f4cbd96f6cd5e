// How long the ranks' load windows are: what the configuration says, longer while the daemon cannot
// keep up.
#pragma once

#include <cstdint>

#include "server/core/state/decision_context.h"

namespace eplb::core {

// Windows become at most so many times as long as configured.
inline constexpr int32_t kMaxReportIntervalFactor = 16;
// A longer window must have taken effect before drops say that it is still too short.
inline constexpr absl::Duration kRaiseInterval = absl::Seconds(10);
// Without drops for so long, windows become shorter again.
inline constexpr absl::Duration kCalmInterval = absl::Seconds(60);

// Notes what was dropped; doubles or halves what CheckReportInterval asks: of all jobs when the
// daemon's queue was full; of one job when most of its reporters send more than their streams may.
// A rank that does so alone changes no windows.
void NoteDroppedReports(State& state, const Tick& tick, absl::Time now);

// Asks the ranks of a live run for another length when theirs is not what is wanted, and
// notes when a change has taken effect. The new length begins at a step that is a multiple of all
// lengths and so far ahead that every rank hears of it before: all change alike. A rank that hears
// of it too late changes at its next common multiple; until then its windows miss in the sums,
// which costs quality only. A change that shows no effect is announced again.
void CheckReportInterval(DecisionContext& context, Job& job);

// Tells a rank that has just been welcomed of a change that was announced.
void RepeatReportInterval(DecisionContext& context, Sender sender);

}  // namespace eplb::core
