// Questions of serving engines. To all rules an engine is a run of one rank that speaks for all of
// its GPUs; instead of a stream it has questions, whose answers carry the proposals.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/core/state/decision_context.h"

namespace eplb::core {

// An engine that asks nothing for so long is taken to be away. Until its interval is known:
// kUnknownIdle.
inline constexpr absl::Duration kLeastIdle = absl::Minutes(10);
inline constexpr int kIdleIntervals = 12;
inline constexpr absl::Duration kUnknownIdle = absl::Hours(1);

// Registers the engine's rank if this question is its first one, or if its current placement is not
// the known one; and settles the newest answer by that placement. A question that still waits for
// its answer is refused. returns: the rank, whose load report follows. errors: those of
// HandleHello; InvalidArgument for the question's own fields; FailedPrecondition for the name of a
// job that trains; Unavailable while another run has the job. Nothing has changed after
// InvalidArgument.
absl::StatusOr<Sender> BeginQuestion(DecisionContext& context, const PlanQuestion& question);

// Returns the load report of the question, whose step is the question's number.
wire::LoadReport ReportOf(const PlanQuestion& question, const Rank& rank);

// From here on the question waits: for a proposal, or for the decision that there is none.
void AwaitAnswer(DecisionContext& context, Sender sender, const PlanQuestion& question);

// Answers a question or a report with an error. Does nothing for ticket 0.
void Refuse(DecisionContext& context, int64_t ticket, const absl::Status& status);

// Settles a proposal that an answer carried. errors: NotFound if it is not in flight.
void HandleSettled(DecisionContext& context, const PlanSettled& settled);

// At the end of every event: the ranks of engines become PREPARED for what is proposed, forget what
// is cancelled before an answer carried it, and questions whose answer is known are answered.
void ServeEngines(DecisionContext& context);

// Effects of the decision before were dropped: refuses the questions that it began or answered.
void FailQuestions(DecisionContext& context, const absl::Status& why);

// Ends the session of an engine's rank, which has none in the daemon's list of streams.
void EndEngine(DecisionContext& context, Job& job, const std::string& why);
// At a Tick: engines that ask nothing for long are away. Then their jobs end and expire.
void EndIdleEngine(DecisionContext& context, Job& job);

}  // namespace eplb::core
