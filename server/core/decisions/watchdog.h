// No state lasts in silence: what is older than three times its deadline is told.
#pragma once

#include "absl/time/time.h"

#include "server/core/state/decision_context.h"

namespace eplb::core {

// How long the job's state may last before something is done about it; infinite for IDLE, and for
// a job whose run is over for good. That of VOTING grows with the time between the ranks' votes.
absl::Duration DeadlineOf(const Config& config, const Job& job);

// The age of a state that is older than three times its deadline, else zero.
absl::Duration StuckFor(const Config& config, const Job& job, absl::Time now);

// Records one "stuck" event per state, unless the state's own deadline has done so.
void WatchState(DecisionContext& context, Job& job);

}  // namespace eplb::core
