// The record of a job's decisions, from the moment of deciding to the last chunk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

#include "placement/backtest/planner.h"
#include "server/core/state/decision_context.h"
#include "server/core/values/record.h"

namespace eplb::core {

// Begin of the reason of a rollback's pause; the version follows.
inline constexpr char kForRollback[] = "for a rollback to version ";

// Adds the planner's candidates as they are shown and stored.
void AddCandidates(const PlannerState& state,
                   google::protobuf::RepeatedPtrField<v1::TriedCandidate>* out);

// Returns true if the newest plan and this one, which nobody asked for, only keep the placement. A
// policy that chooses decides at every window, and of such a row the newest plan stands for all.
bool RepeatsKept(const Job& job, const v1::Plan& plan);

// Numbers and keeps a plan; fills in when it was decided and on which version. A plan that
// RepeatsKept replaces the newest one and is not written until StoreRepeatedPlan.
void AddPlan(DecisionContext& context, Job& job, v1::Plan plan);
// Writes the newest plan if it may have replaced one that was written.
void StoreRepeatedPlan(DecisionContext& context, const Job& job);

// The plan with this number; null unless chunks of it are in flight or still to be proposed.
v1::Plan* OpenPlan(Job& job, int64_t number);

// When the windows that were decided on came, and when the solver began. cost: O(windows).
v1::PlanTimes TimesOf(const Job& job);
// Keeps the chunks' times of the newest kTimedPlans plans only. cost: O(plans).
void ForgetOldTimes(Job& job);

// Notes the times of the open plan's chunk in flight: the first PREPARED, the last PREPARED, the
// first Applied. Without an open plan nothing is noted.
void NoteRankPrepared(Job& job, int32_t rank, absl::Time now);
void NoteAllPrepared(Job& job, absl::Time now);
void NoteRankApplied(Job& job, int32_t rank, double pause_seconds, absl::Time now);

// A chunk was proposed, or is the current placement.
void NoteProposed(DecisionContext& context, Job& job, const Proposal& proposal);
void NoteCommitted(DecisionContext& context, Job& job, const Proposal& proposal);

// windows.measured is new: it may be what followed the newest plan that switched.
void NoteMeasured(DecisionContext& context, Job& job);

// The newest plan that switched anything; null when none did.
const v1::Plan* NewestSwitched(const Job& job);

// Closes open plans of which no chunk is in flight or still to come: committed, partial or
// withdrawn by what was committed. `why` is added to the reason unless all was committed or a newer
// decision replaced the rest, and tells in the reason of the pause what a rollback came to.
void SettlePlan(DecisionContext& context, Job& job, const std::string& why);

// After a restart: what became of the plans that the daemon before had in flight, as far as the
// version that all ranks run tells.
void SettleOldPlan(DecisionContext& context, Job& job);

// The version that a Rollback goes to. errors: FailedPrecondition when no decision is known that
// led to the current version.
absl::StatusOr<int64_t> RollbackTargetOf(const Job& job, std::optional<int64_t> to_version);

}  // namespace eplb::core
