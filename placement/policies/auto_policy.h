// Policy `auto` for a single plan, without a history to back-test candidates on.
#pragma once

#include <memory>

#include "placement/policy.h"

namespace eplb {

// Idea: a single plan has no windows to test candidates on (placement/backtest does, in the daemon
// and in a replay). So it is `incremental` from a previous placement, with which the back-test
// begins too, and `balanced` without one. Guarantees, errors, cost: of that policy. threads: any.
std::unique_ptr<Policy> MakeAutoPolicy(const PolicyOptions& options);

}  // namespace eplb
