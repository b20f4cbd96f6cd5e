// Why a run ended, in words: the rank that was lost first stands first, whoever reported first.
//
// A killed process closes its streams at once. The other ranks notice it by the error of a
// collective, report that they failed, and hide the cause. A launcher then kills those that are
// left. So the first stream that was cut before the first report is the cause; later cuts are not.
#pragma once

#include <string>

#include "absl/time/time.h"

#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

// The order in which two streams' ends are read is not the order in which they happened. A stream
// that was cut within this time after the first report is the cause, too. A launcher needs longer:
// it has to see that a process ended before it kills the others.
inline constexpr absl::Duration kSettling = absl::Milliseconds(100);

// The first report that a rank of the run failed.
Failure FailureOf(Sender sender, const wire::Goodbye& goodbye, absl::Time now);

// Returns the reason of a run with a failure: "rank 2 was lost at 12:03:04 UTC, after step 19 (its
// stream ended without a close); rank 1 failed 0.02 s later: gloo: connection closed by peer". If
// no stream was cut before the failure, the reason is the failure alone. REQUIRES: run.failure.
std::string FailureReason(const Run& run);

// Returns the reason of a run with a rank that was away for longer than `grace`.
std::string LossReason(const Run& run, absl::Duration grace, absl::Time now);

// Amends the reason of a run that failed by later news, and audits that. The next Tick stores it.
void AmendEnding(DecisionContext& context, Job& job);

// How the job's newest run ended; nullptr while it lives, and when none has been seen.
const v1::RunEnd* EndOf(const Job& job);

}  // namespace eplb::core
