#include "server/core/ranks/answers.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "server/core/decisions/plans.h"
#include "server/core/decisions/proposal.h"
#include "server/core/decisions/recovery.h"
#include "server/core/state/sentences.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

bool IsOurs(const Sender& sender, int64_t version) {
  return sender.is_current() && sender.job.proposal &&
         sender.job.proposal->message.version == version;
}

// Only of an answer to what is in flight: any other may be said as often as a rank likes.
void UpdateStep(DecisionContext& context, Sender& sender, int64_t step) {
  const int64_t windows = context.state.config.max_pending_windows;
  const StepClaim claim = EvaluateStep(sender.run, sender.index, step, windows);
  if (claim != StepClaim::kBelieved) return;
  sender.rank.step = std::max(sender.rank.step, step);
  Advance(sender.run.front, sender.index, step);
  if (!sender.is_current()) return;
  sender.job.step = std::max(sender.job.step, step);
  NoteStep(sender.run, step, context.now);
}

// How long all ranks were PREPARED before their vote let them switch. Not counted when an Applied
// overtook the last PREPARED.
void CountGateWait(DecisionContext& context, const Job& job, const wire::Applied& applied) {
  if (job.phase != Phase::kVoting) return;
  const Proposal& proposal = *job.proposal;
  const double since_ready =
      absl::ToDoubleSeconds(context.now - proposal.proposed_at) - proposal.prepare_seconds;
  context.state.counters.gate_wait_seconds.Add(std::max(0.0, since_ready - applied.pause_seconds));
}

// `reported` is false when a Hello told it: then step, bytes and pause are not known.
void CountApplied(DecisionContext& context, Sender sender, const wire::Applied& applied,
                  bool reported) {
  Job& job = sender.job;
  Proposal& proposal = *job.proposal;
  Rank& rank = sender.rank;
  rank.running_version = applied.version;
  rank.running_digest = applied.digest;
  rank.prepared_version = 0;
  if (applied.digest != proposal.message.digest) {
    Quarantine(context, job,
               absl::StrCat("rank ", sender.index, " runs version ", applied.version,
                            " with digest ", ShortHex(applied.digest), ", proposed was ",
                            ShortHex(proposal.message.digest)));
    return;
  }
  // The ranks' vote is behind it: whoever reports steps of this version ran this placement.
  job.windows.placements.Add(applied.version, proposal.after);
  if (reported && applied.step != proposal.applied_step.value_or(applied.step)) {
    Quarantine(
        context, job,
        absl::StrCat("rank ", sender.index, " applied version ", applied.version, " at step ",
                     applied.step, ", another rank at step ", *proposal.applied_step));
  }
  if (reported && !proposal.applied_step) {
    proposal.applied_step = applied.step;
    CountGateWait(context, job, applied);
  }
  if (rank.answer == Answer::kApplied) return;
  if (rank.answer == Answer::kFailed) {
    Quarantine(context, job,
               absl::StrCat("rank ", sender.index, " applied version ", applied.version,
                            " after it had refused it"));
  }
  Counters& counters = context.state.counters;
  ++counters.applied;
  if (reported) {
    counters.pause_seconds.Add(applied.pause_seconds);
    rank.pause_seconds = applied.pause_seconds;
    NoteRankApplied(job, sender.index, applied.pause_seconds, context.now);
  }
  if (!reported) {
    proposal.received_bytes.reset();
  } else if (proposal.received_bytes) {
    AddCapped(*proposal.received_bytes, applied.received_bytes);
  }
  proposal.most_received_bytes = std::max(proposal.most_received_bytes, applied.received_bytes);
  proposal.longest_pause_seconds = std::max(proposal.longest_pause_seconds, applied.pause_seconds);
  SetAnswer(proposal, rank, Answer::kApplied);
  Conclude(context, job);
}

// A version that is not in flight: an earlier daemon proposed it.
void HandleForeignApplied(DecisionContext& context, Sender sender, const wire::Applied& applied) {
  Job& job = sender.job;
  Rank& rank = sender.rank;
  if (applied.version <= rank.running_version) return;  // said twice
  rank.running_version = applied.version;
  rank.running_digest = applied.digest;
  if (rank.prepared_version <= applied.version) rank.prepared_version = 0;
  RaiseNextVersion(job, applied.version);
  if (!sender.is_current()) return;
  if (!job.proposal) {
    Recheck(context, job, sender.index);
  } else if (job.phase == Phase::kPreparing || job.phase == Phase::kVoting) {
    StartCancel(context, job,
                absl::StrCat("rank ", sender.index, " switched to version ", applied.version,
                             ", which this daemon did not propose"),
                false);
  }
}

std::string NackName(wire::NackCode code) {
  constexpr const char* kNames[] = {
      "",        "STALE_TERM",        "STALE_VERSION", "WRONG_BASE", "WRONG_DIGEST",
      "INVALID", "STAGING_TOO_SMALL", "BUSY"};
  static_assert(std::size(kNames) == static_cast<size_t>(wire::NackCode::kBusy) + 1);
  return kNames[static_cast<size_t>(code)];
}

}  // namespace

void Handle(DecisionContext& context, Sender sender, const wire::Prepared& prepared) {
  Job& job = sender.job;
  Rank& rank = sender.rank;
  if (prepared.version <= rank.running_version) return;  // overtaken by its own Applied
  rank.prepared_version = prepared.version;
  if (!IsOurs(sender, prepared.version)) {
    RaiseNextVersion(job, prepared.version);
    SendTo(context, rank, wire::Cancel{prepared.version, "this daemon does not have it in flight"});
    if (sender.is_current()) Recheck(context, job, sender.index);
    return;
  }
  if (job.phase != Phase::kPreparing || IsFinal(rank)) return;
  Proposal& proposal = *job.proposal;
  if (prepared.digest != proposal.message.digest) {
    Quarantine(context, job,
               absl::StrCat("rank ", sender.index, " computed digest ", ShortHex(prepared.digest),
                            " for version ", prepared.version, ", proposed was ",
                            ShortHex(proposal.message.digest)));
    return;
  }
  if (prepared.plan_hash != proposal.plan_hash.value_or(prepared.plan_hash)) {
    Quarantine(context, job,
               absl::StrCat("rank ", sender.index, " computed the plan ",
                            ShortHex(prepared.plan_hash), " for version ", prepared.version,
                            ", another rank ", ShortHex(*proposal.plan_hash)));
    return;
  }
  proposal.plan_hash = prepared.plan_hash;
  ++context.state.counters.prepared;
  rank.answer_seconds = absl::ToDoubleSeconds(context.now - proposal.proposed_at);
  NoteRankPrepared(job, sender.index, context.now);
  SetAnswer(proposal, rank, Answer::kPrepared);
  Conclude(context, job);
}

void Handle(DecisionContext& context, Sender sender, const wire::Nack& nack) {
  if (!IsOurs(sender, nack.version) || IsFinal(sender.rank)) return;
  Job& job = sender.job;
  ++context.state.counters.nacks.at(static_cast<size_t>(nack.code));
  SetAnswer(*job.proposal, sender.rank, Answer::kFailed);
  // A rank that is BUSY is still PREPARED for another version.
  if (sender.rank.prepared_version == nack.version) sender.rank.prepared_version = 0;
  const std::string reason = absl::StrCat("rank ", sender.index, " refused version ", nack.version,
                                          " (", NackName(nack.code), "): ", nack.detail);
  RecordEvent(context, job, "nacked", nack.version, reason);
  if (nack.code == wire::NackCode::kWrongDigest) {
    Quarantine(context, job, reason);
  } else if (job.phase == Phase::kPreparing || job.phase == Phase::kVoting) {
    StartCancel(context, job, reason, true);
  } else {
    Conclude(context, job);
  }
}

void Handle(DecisionContext& context, Sender sender, const wire::Applied& applied) {
  if (!applied.transport.empty()) {
    sender.rank.transport.name = applied.transport;
    sender.rank.transport.fallback_reason = applied.fallback_reason;
  }
  if (IsOurs(sender, applied.version)) {
    UpdateStep(context, sender, applied.step);
    CountApplied(context, sender, applied, true);
  } else {
    HandleForeignApplied(context, sender, applied);
  }
}

void Handle(DecisionContext& context, Sender sender, const wire::Failed& failed) {
  Job& job = sender.job;
  if (sender.rank.prepared_version == failed.version) sender.rank.prepared_version = 0;
  if (!IsOurs(sender, failed.version)) {
    if (sender.is_current() && !job.proposal) Recheck(context, job, sender.index);
    return;
  }
  UpdateStep(context, sender, failed.step);
  if (sender.rank.answer == Answer::kApplied) {
    Quarantine(context, job,
               absl::StrCat("rank ", sender.index, " dropped version ", failed.version,
                            " after it had applied it"));
    return;
  }
  ++context.state.counters.failed.at(static_cast<size_t>(failed.code));
  SetAnswer(*job.proposal, sender.rank, Answer::kFailed);
  const std::string reason = absl::StrCat("rank ", sender.index, " dropped it: ", failed.detail);
  if (job.proposal->withdrawal.empty()) job.proposal->withdrawal = reason;
  const bool in_doubt = job.phase == Phase::kPreparing || job.phase == Phase::kVoting;
  if (in_doubt && failed.code != wire::FailedCode::kTransfer) {
    StartCancel(context, job, reason, true);
  } else {
    Conclude(context, job);
  }
}

void HandleSwitched(DecisionContext& context, Sender sender, const wire::Applied& applied) {
  CountApplied(context, sender, applied, false);
}

void HandleRejoin(DecisionContext& context, Sender sender, const wire::Hello& hello) {
  Job& job = sender.job;
  Rank& rank = sender.rank;
  Proposal& proposal = *job.proposal;
  const int64_t version = proposal.message.version;
  if (hello.running_version == version) {
    CountApplied(context, sender, {.version = version, .digest = hello.running_digest}, false);
    return;
  }
  rank.running_version = hello.running_version;
  rank.running_digest = hello.running_digest;
  if (rank.answer == Answer::kApplied) {
    Quarantine(context, job,
               absl::StrCat("rank ", sender.index, " runs version ", hello.running_version,
                            " after it had applied version ", version));
    return;
  }
  const bool is_ready = hello.prepared_version == version;
  if (!is_ready && hello.prepared_version != 0) {
    SendTo(context, rank,
           wire::Cancel{hello.prepared_version, "this daemon does not have it in flight"});
  }
  if (rank.answer == Answer::kFailed) {
    if (is_ready) CancelFrom(context, rank, proposal);
    return;
  }
  if (job.phase != Phase::kPreparing) {
    // PREPARED in VOTING is what is expected; else its answer was lost, and Cancel brings another.
    if (!is_ready || job.phase != Phase::kVoting) CancelFrom(context, rank, proposal);
    return;
  }
  SetAnswer(proposal, rank, is_ready ? Answer::kPrepared : Answer::kNone);
  if (!is_ready && hello.highest_version < version) SendTo(context, rank, proposal.message);
  Conclude(context, job);
}

void HandleRankFinished(DecisionContext& context, Sender sender) {
  Job& job = sender.job;
  sender.rank.prepared_version = 0;
  if (IsFinal(sender.rank)) return;
  SetAnswer(*job.proposal, sender.rank, Answer::kFailed);
  if (job.phase == Phase::kPreparing || job.phase == Phase::kVoting) {
    StartCancel(context, job, absl::StrCat("rank ", sender.index, " sent Goodbye"), false);
  } else {
    Conclude(context, job);
  }
}

}  // namespace eplb::core
