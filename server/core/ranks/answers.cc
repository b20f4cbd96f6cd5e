#include "server/core/ranks/answers.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

#include "server/core/decisions/held.h"
#include "server/core/decisions/proposal.h"
#include "server/core/state/sentences.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

bool IsOurs(const Speaker& speaker, int64_t version) {
  return speaker.is_current() && speaker.job.proposal &&
         speaker.job.proposal->message.version == version;
}

// Only of an answer to what is in flight: any other may be said as often as a rank likes.
void UpdateStep(Turn& turn, Speaker& speaker, int64_t step) {
  const int64_t windows = turn.state.config.max_pending_windows;
  const StepClaim claim = JudgeStep(speaker.incarnation, speaker.index, step, windows);
  if (claim != StepClaim::kBelieved) return;
  speaker.rank.step = std::max(speaker.rank.step, step);
  Advance(speaker.incarnation.front, speaker.index, step);
  if (!speaker.is_current()) return;
  speaker.job.step = std::max(speaker.job.step, step);
  NoteStep(speaker.incarnation, step, turn.now);
}

// How long all ranks were READY before their vote let them switch. Not counted when an Applied
// overtook the last READY.
void CountGateWait(Turn& turn, const Job& job, const wire::Applied& applied) {
  if (job.phase != Phase::kResolving) return;
  const Proposal& proposal = *job.proposal;
  const double since_ready =
      absl::ToDoubleSeconds(turn.now - proposal.proposed_at) - proposal.prepare_seconds;
  turn.state.counters.gate_wait_seconds.Add(std::max(0.0, since_ready - applied.pause_seconds));
}

// `reported` is false when a Hello told it: then step, bytes and pause are not known.
void CountApplied(Turn& turn, Speaker speaker, const wire::Applied& applied, bool reported) {
  Job& job = speaker.job;
  Proposal& proposal = *job.proposal;
  Rank& rank = speaker.rank;
  rank.running_version = applied.version;
  rank.running_digest = applied.digest;
  rank.ready_version = 0;
  if (applied.digest != proposal.message.digest) {
    Quarantine(turn, job,
               absl::StrCat("rank ", speaker.index, " runs version ", applied.version,
                            " with digest ", ShortHex(applied.digest), ", proposed was ",
                            ShortHex(proposal.message.digest)));
    return;
  }
  // The ranks' vote is behind it: whoever reports steps of this version ran this placement.
  job.windows.placements.Add(applied.version, proposal.after);
  if (reported && applied.step != proposal.applied_step.value_or(applied.step)) {
    Quarantine(
        turn, job,
        absl::StrCat("rank ", speaker.index, " applied version ", applied.version, " at step ",
                     applied.step, ", another rank at step ", *proposal.applied_step));
  }
  if (reported && !proposal.applied_step) {
    proposal.applied_step = applied.step;
    CountGateWait(turn, job, applied);
  }
  if (rank.answer == Answer::kApplied) return;
  if (rank.answer == Answer::kFailed) {
    Quarantine(turn, job,
               absl::StrCat("rank ", speaker.index, " applied version ", applied.version,
                            " after it had refused it"));
  }
  Counters& counters = turn.state.counters;
  ++counters.applied;
  if (reported) {
    counters.pause_seconds.Add(applied.pause_seconds);
    rank.pause_seconds = applied.pause_seconds;
  }
  if (!reported) {
    proposal.received_bytes = kNotMeasured;
  } else if (proposal.received_bytes != kNotMeasured) {
    AddCapped(proposal.received_bytes, applied.received_bytes);
  }
  proposal.most_received_bytes = std::max(proposal.most_received_bytes, applied.received_bytes);
  proposal.longest_pause_seconds = std::max(proposal.longest_pause_seconds, applied.pause_seconds);
  SetAnswer(proposal, rank, Answer::kApplied);
  Conclude(turn, job);
}

// A version that is not in flight: an earlier daemon proposed it.
void HandleForeignApplied(Turn& turn, Speaker speaker, const wire::Applied& applied) {
  Job& job = speaker.job;
  Rank& rank = speaker.rank;
  if (applied.version <= rank.running_version) return;  // said twice
  rank.running_version = applied.version;
  rank.running_digest = applied.digest;
  if (rank.ready_version <= applied.version) rank.ready_version = 0;
  RaiseNextVersion(job, applied.version);
  if (!speaker.is_current()) return;
  if (!job.proposal) {
    Recheck(turn, job, speaker.index);
  } else if (job.phase == Phase::kPreparing || job.phase == Phase::kResolving) {
    StartRetract(turn, job,
                 absl::StrCat("rank ", speaker.index, " switched to version ", applied.version,
                              ", which this daemon did not propose"),
                 false);
  }
}

std::string NackName(wire::NackCode code) {
  switch (code) {
    case wire::NackCode::kStaleTerm:
      return "STALE_TERM";
    case wire::NackCode::kStaleVersion:
      return "STALE_VERSION";
    case wire::NackCode::kWrongBase:
      return "WRONG_BASE";
    case wire::NackCode::kWrongDigest:
      return "WRONG_DIGEST";
    case wire::NackCode::kInvalid:
      return "INVALID";
    case wire::NackCode::kStagingTooSmall:
      return "STAGING_TOO_SMALL";
    case wire::NackCode::kBusy:
      return "BUSY";
  }
  return "";
}

}  // namespace

void HandleReady(Turn& turn, Speaker speaker, const wire::Ready& ready) {
  Job& job = speaker.job;
  Rank& rank = speaker.rank;
  if (ready.version <= rank.running_version) return;  // overtaken by its own Applied
  rank.ready_version = ready.version;
  if (!IsOurs(speaker, ready.version)) {
    RaiseNextVersion(job, ready.version);
    SendTo(turn, rank, wire::Retract{ready.version, "this daemon does not have it in flight"});
    if (speaker.is_current()) Recheck(turn, job, speaker.index);
    return;
  }
  if (job.phase != Phase::kPreparing || IsFinal(rank)) return;
  Proposal& proposal = *job.proposal;
  if (ready.digest != proposal.message.digest) {
    Quarantine(turn, job,
               absl::StrCat("rank ", speaker.index, " computed digest ", ShortHex(ready.digest),
                            " for version ", ready.version, ", proposed was ",
                            ShortHex(proposal.message.digest)));
    return;
  }
  if (ready.plan_hash != proposal.plan_hash.value_or(ready.plan_hash)) {
    Quarantine(turn, job,
               absl::StrCat("rank ", speaker.index, " computed the plan ",
                            ShortHex(ready.plan_hash), " for version ", ready.version,
                            ", another rank ", ShortHex(*proposal.plan_hash)));
    return;
  }
  proposal.plan_hash = ready.plan_hash;
  ++turn.state.counters.ready;
  rank.answer_seconds = absl::ToDoubleSeconds(turn.now - proposal.proposed_at);
  SetAnswer(proposal, rank, Answer::kReady);
  Conclude(turn, job);
}

void HandleNack(Turn& turn, Speaker speaker, const wire::Nack& nack) {
  if (!IsOurs(speaker, nack.version) || IsFinal(speaker.rank)) return;
  Job& job = speaker.job;
  ++turn.state.counters.nacks.at(static_cast<size_t>(nack.code));
  SetAnswer(*job.proposal, speaker.rank, Answer::kFailed);
  // A rank that is BUSY is still READY for another version.
  if (speaker.rank.ready_version == nack.version) speaker.rank.ready_version = 0;
  const std::string reason = absl::StrCat("rank ", speaker.index, " refused version ", nack.version,
                                          " (", NackName(nack.code), "): ", nack.detail);
  RecordEvent(turn, job, "nacked", nack.version, reason);
  if (nack.code == wire::NackCode::kWrongDigest) {
    Quarantine(turn, job, reason);
  } else if (job.phase == Phase::kPreparing || job.phase == Phase::kResolving) {
    StartRetract(turn, job, reason, true);
  } else {
    Conclude(turn, job);
  }
}

void HandleApplied(Turn& turn, Speaker speaker, const wire::Applied& applied) {
  if (!applied.transport.empty()) {
    speaker.rank.transport.name = applied.transport;
    speaker.rank.transport.passed_over = applied.passed_over;
  }
  if (IsOurs(speaker, applied.version)) {
    UpdateStep(turn, speaker, applied.step);
    CountApplied(turn, speaker, applied, true);
  } else {
    HandleForeignApplied(turn, speaker, applied);
  }
}

void HandleFailed(Turn& turn, Speaker speaker, const wire::Failed& failed) {
  Job& job = speaker.job;
  if (speaker.rank.ready_version == failed.version) speaker.rank.ready_version = 0;
  if (!IsOurs(speaker, failed.version)) {
    if (speaker.is_current() && !job.proposal) Recheck(turn, job, speaker.index);
    return;
  }
  UpdateStep(turn, speaker, failed.step);
  if (speaker.rank.answer == Answer::kApplied) {
    Quarantine(turn, job,
               absl::StrCat("rank ", speaker.index, " dropped version ", failed.version,
                            " after it had applied it"));
    return;
  }
  ++turn.state.counters.failed.at(static_cast<size_t>(failed.code));
  SetAnswer(*job.proposal, speaker.rank, Answer::kFailed);
  const std::string reason = absl::StrCat("rank ", speaker.index, " dropped it: ", failed.detail);
  if (job.proposal->withdrawal.empty()) job.proposal->withdrawal = reason;
  const bool in_doubt = job.phase == Phase::kPreparing || job.phase == Phase::kResolving;
  if (in_doubt && failed.code != wire::FailedCode::kTransfer) {
    StartRetract(turn, job, reason, true);
  } else {
    Conclude(turn, job);
  }
}

void HandleRejoin(Turn& turn, Speaker speaker, const wire::Hello& hello) {
  Job& job = speaker.job;
  Rank& rank = speaker.rank;
  Proposal& proposal = *job.proposal;
  const int64_t version = proposal.message.version;
  if (hello.running_version == version) {
    CountApplied(turn, speaker, {.version = version, .digest = hello.running_digest}, false);
    return;
  }
  rank.running_version = hello.running_version;
  rank.running_digest = hello.running_digest;
  if (rank.answer == Answer::kApplied) {
    Quarantine(turn, job,
               absl::StrCat("rank ", speaker.index, " runs version ", hello.running_version,
                            " after it had applied version ", version));
    return;
  }
  const bool is_ready = hello.ready_version == version;
  if (!is_ready && hello.ready_version != 0) {
    SendTo(turn, rank,
           wire::Retract{hello.ready_version, "this daemon does not have it in flight"});
  }
  if (rank.answer == Answer::kFailed) {
    if (is_ready) RetractFrom(turn, rank, proposal);
    return;
  }
  if (job.phase != Phase::kPreparing) {
    // READY in RESOLVING is what is expected; else its answer was lost, and Retract brings another.
    if (!is_ready || job.phase != Phase::kResolving) RetractFrom(turn, rank, proposal);
    return;
  }
  SetAnswer(proposal, rank, is_ready ? Answer::kReady : Answer::kNone);
  if (!is_ready && hello.highest_version < version) SendTo(turn, rank, proposal.message);
  Conclude(turn, job);
}

void HandleRankFinished(Turn& turn, Speaker speaker) {
  Job& job = speaker.job;
  speaker.rank.ready_version = 0;
  if (IsFinal(speaker.rank)) return;
  SetAnswer(*job.proposal, speaker.rank, Answer::kFailed);
  if (job.phase == Phase::kPreparing || job.phase == Phase::kResolving) {
    StartRetract(turn, job, absl::StrCat("rank ", speaker.index, " said Goodbye"), false);
  } else {
    Conclude(turn, job);
  }
}

}  // namespace eplb::core
