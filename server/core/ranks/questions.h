// Questions of serving engines. To all rules an engine is a run of one rank that speaks for all of
// its GPUs; instead of a stream it has questions, whose answers carry the proposals.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/core/state/decision_context.h"

namespace eplb::core {

// An engine that asked nothing for so long, and for kIdleIntervals of its intervals, is away.
inline constexpr absl::Duration kLeastIdle = absl::Hours(1);
inline constexpr int kIdleIntervals = 30;

// Registers the engine's rank where this question is its first one, or shows another placement than
// what is known to run; and learns from the current placement what became of the newest answer.
// returns: the rank, whose load report follows. errors: as HandleHello; InvalidArgument for the
// question's own fields; Aborted while another question of the job waits.
absl::StatusOr<Sender> BeginQuestion(DecisionContext& context, const PlanQuestion& question);

// The load report of the question; its step is the question's number.
wire::LoadReport ReportOf(const PlanQuestion& question, const Rank& rank);

// The question's answer is due: a proposal that is made for it, or before the next question.
void AwaitAnswer(DecisionContext& context, Sender sender, const PlanQuestion& question);

// Answers what has failed.
void Refuse(DecisionContext& context, int64_t ticket, const absl::Status& status);

// Settles a proposal that an answer carried. errors: NotFound if it is not in flight.
void HandleSettled(DecisionContext& context, const PlanSettled& settled);

// At the end of every event: the ranks of engines are PREPARED for what is proposed, forget what is
// cancelled before an answer carried it, and questions whose answer is known are answered.
void ServeEngines(DecisionContext& context);

// Effects of the decision before were dropped: refuses the questions that it began or answered.
void FailQuestions(DecisionContext& context, const absl::Status& why);

// At a Tick: engines that ask no more are away, so that their jobs end and expire.
void EndIdleEngine(DecisionContext& context, Job& job);

}  // namespace eplb::core
