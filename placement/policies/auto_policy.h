// Policy `auto` for a single plan, without a history to back-test candidates on.
#ifndef EPLB_PLACEMENT_POLICIES_AUTO_POLICY_H_
#define EPLB_PLACEMENT_POLICIES_AUTO_POLICY_H_

#include <memory>

#include "placement/policies/incremental_policy.h"
#include "placement/policy.h"

namespace eplb {

// Idea: a single plan has no windows to test candidates on (placement/backtest does, in the daemon
// and in a replay). So it is `incremental` from a previous placement, with which the back-test
// begins too, and `balanced` without one. Guarantees, errors, cost: of that policy. threads: any.
std::unique_ptr<Policy> MakeAutoPolicy(const IncrementalOptions& options);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_POLICIES_AUTO_POLICY_H_
