// Time that a job saved: takes its samples from load windows, and shows the sum.
#pragma once

#include "server/core/state/decision_context.h"
#include "server/core/state/state.h"
#include "server/core/values/record.h"

namespace eplb::core {

// The account is written once it has a price, and then at least this often while windows are
// measured: a daemon that is killed loses no more of it.
inline constexpr absl::Duration kAccountWritten = absl::Minutes(1);

// Takes the time of the steps of the newest complete window, and adds the window to the account if
// it is measured.
void NoteSaved(DecisionContext& context, Job& job, bool measured);

// Sets saved_seconds and its basis, and spent_seconds.
void ShowSaved(const State& state, const Job& job, v1::JobStatus& status);

}  // namespace eplb::core
