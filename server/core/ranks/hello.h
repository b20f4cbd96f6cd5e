// The first message of a session: who may speak for a rank.
#pragma once

#include "absl/status/status.h"

#include "proto/wire/messages.h"
#include "server/core/state/decision_context.h"

namespace eplb::core {

// Checks a Hello by itself, without the job. errors: InvalidArgument with the field;
// ResourceExhausted if the job has more ranks than the daemon takes.
absl::Status CheckHello(const wire::Hello& hello, const Config& config);

// Answers Welcome and asks the rank for what the job's state needs, or closes the session:
// ALREADY_EXISTS for another process of a live rank; FAILED_PRECONDITION for a shape or run that
// does not fit or never returns; UNAVAILABLE while the daemon drains or another run gathers.
void HandleHello(DecisionContext& context, SessionId session, const wire::Hello& hello);

// HandleHello without a session to close: the error is the caller's to answer.
absl::Status AdmitHello(DecisionContext& context, SessionId session, const wire::Hello& hello);

}  // namespace eplb::core
