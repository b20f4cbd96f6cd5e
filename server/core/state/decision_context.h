// One decision in the making, and the effects that every rule emits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "server/core/state/state.h"
#include "server/core/values/core_lock.h"

namespace eplb::core {

struct DecisionContext {
  State& state;
  absl::Time now;
  Decision decision;
  CoreLock* lock = nullptr;  // for ReadersIn
};

// Sender of a message. The references are invalid once its run is replaced.
struct Sender {
  Job& job;
  Run& run;
  Rank& rank;
  int32_t index = 0;
  SessionId session = 0;

  bool is_current() const { return job.current && &*job.current == &run; }
};

void SendOn(DecisionContext& context, SessionId session, wire::DownMessage message);
// Does nothing for a rank that is away.
void SendTo(DecisionContext& context, const Rank& rank, wire::DownMessage message);
void SendToAll(DecisionContext& context, const Run& run, const wire::DownMessage& message);

// Ends a session whose rank breaks the protocol or may not take part; it is counted, and logged
// under the name `who`. Unavailable and Aborted refuse no rank: they ask for a later session.
void CloseRefused(DecisionContext& context, SessionId session, const std::string& who,
                  absl::Status status);
// Ends a rank's session with this status; the rank is away from now on. InvalidArgument refuses it.
void CloseRank(DecisionContext& context, Run& run, Rank& rank, absl::Status status);
// Ends all sessions of a run.
void CloseAll(DecisionContext& context, Run& run, const absl::Status& status);

// Audits, and becomes the job's and the decision's reason. Of events that ranks can repeat at will
// only as many are audited as the job's budget allows; the next one tells how many were not.
void RecordEvent(DecisionContext& context, Job& job, const std::string& name, int64_t version,
                 const std::string& reason);

// The same for what is no decision's reason: the job's own reason stays.
void RecordNotice(DecisionContext& context, Job& job, const std::string& name,
                  const std::string& reason);

// One more of what the budget is for; false when it is used up.
bool Spend(Budget& budget, absl::Time now);

// Returns an event of the job under its term and its current version.
Record RecordOf(const Job& job, const std::string& name, const std::string& reason);
// Audits what an operator did or was refused: an event of its own, which is not the job's reason.
void RecordChange(DecisionContext& context, Record record);

void SetPhase(DecisionContext& context, Job& job, Phase phase);
// The answer of the policy that computes for this job, if one does, is not wanted any more.
void StopSolve(DecisionContext& context, Job& job);

// Stores a term that was raised, or whose storing failed. Goes before every message that carries
// it.
void StoreTermIfNeeded(DecisionContext& context);

// False of a job that is in no store: its ranks have not said what it runs, they bring its numbers
// back, and no operator has stopped it.
bool BelongsInStore(const Job& job);
// Writes the job's record, with the change that it is part of. REQUIRES: BelongsInStore(job).
void StoreJob(DecisionContext& context, Job& job, std::optional<DoneRequest> done = std::nullopt);
void StoreJobIfChanged(DecisionContext& context, Job& job);
// At the end of a decision about this job alone: writes what it changed and has not written, and
// hands the memory to the ranks.
void StoreJobIfDue(DecisionContext& context, Job& job);
// Writes the typical loads of a job if they have changed. A failure loses nothing else. A crash
// loses the windows since then, of ten minutes at most; the end of a run and a drain lose none.
inline constexpr absl::Duration kMostBetweenHistories = absl::Minutes(10);
void StoreLoadHistory(DecisionContext& context, Job& job);
// No write of this job may come before the answers to what is in flight.
bool MayStore(const Job& job);

// The job as it is, should the change that follows not be stored.
Undo UndoOf(const DecisionContext& context, const Job& job, int64_t ticket,
            const std::string& verb);

// No proposal below or equal to `version` will be made.
void RaiseNextVersion(Job& job, int64_t version);

}  // namespace eplb::core
