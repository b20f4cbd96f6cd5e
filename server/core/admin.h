// Changes by operators: who asked, whether the change is allowed, and its effects.
#pragma once

#include "absl/status/status.h"

#include "server/core/state/decision_context.h"
#include "server/core/values/record.h"

namespace eplb::core {

// Answered by exactly one Reply. What is done is stored with the request's id before anything else
// happens; done or refused, it is an event of the audit log. A preview changes, stores and audits
// nothing; of a Rebalance the decision that follows is recorded as one of an observed job.
void HandleChange(DecisionContext& context, const Change& change);

// The decision before could not be stored: if it was a change, the job is as it was before it and
// the change is answered Unavailable.
void UndoChange(DecisionContext& context, const absl::Status& status);

}  // namespace eplb::core
