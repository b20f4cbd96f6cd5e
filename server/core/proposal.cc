#include "server/core/proposal.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "server/core/held.h"
#include "server/core/sentences.h"

namespace eplb::core {
namespace {

constexpr int32_t kMaxSkippedDecisions = 64;

bool IsOurs(const Speaker& speaker, int64_t version) {
  return speaker.is_current() && speaker.job.proposal &&
         speaker.job.proposal->message.version == version;
}

void Count(Proposal& proposal, Answer answer, int32_t change) {
  if (answer == Answer::kReady) proposal.num_ready += change;
  if (answer == Answer::kApplied) proposal.num_applied += change;
  if (answer == Answer::kFailed) proposal.num_failed += change;
}

void SetAnswer(Proposal& proposal, Rank& rank, Answer answer) {
  Count(proposal, rank.answer, -1);
  rank.answer = answer;
  Count(proposal, rank.answer, 1);
}

bool IsFinal(const Rank& rank) {
  return rank.answer == Answer::kApplied || rank.answer == Answer::kFailed;
}

void RetractFrom(Turn& turn, const Rank& rank, const Proposal& proposal) {
  SendTo(turn, rank, wire::Retract{proposal.message.version, proposal.withdrawal});
}

void UpdateStep(Speaker& speaker, int64_t step) {
  speaker.rank.step = std::max(speaker.rank.step, step);
  if (speaker.is_current()) speaker.job.step = std::max(speaker.job.step, step);
}

std::vector<int32_t> RanksThat(const Incarnation& incarnation, Answer answer) {
  std::vector<int32_t> ranks;
  for (int32_t index = 0; index < incarnation.world_size(); ++index) {
    if (incarnation.ranks[index].answer == answer) ranks.push_back(index);
  }
  return ranks;
}

// All ranks run the proposal: it is the placement in force, whatever the state was.
void Commit(Turn& turn, Job& job) {
  const Proposal proposal = *std::move(job.proposal);
  job.proposal.reset();
  const wire::Propose& message = proposal.message;
  job.known = Known{message.version, message.digest, proposal.after};
  job.back_off = {};
  ++job.commits;
  StoreJob(turn, job);
  RecordEvent(
      turn, job, "committed", message.version,
      absl::StrFormat("version %d (chunk %d of %d) was committed at step %s: %d bytes received, "
                      "longest pause %.3f s",
                      message.version, message.chunk + 1, message.num_chunks,
                      proposal.applied_step ? absl::StrCat(*proposal.applied_step) : "unknown",
                      proposal.received_bytes, proposal.longest_pause_seconds));
  if (job.phase == Phase::kQuarantine) return;
  const bool all_here = job.current->num_connected == job.current->world_size();
  if (job.chunks.rest.empty() || turn.state.draining || !all_here) {
    job.chunks = {};
    EnterIdleOrHeld(turn, job);
  } else {
    ProposeNextChunk(turn, job);
  }
}

// No rank holds the proposal any more and none ran it.
void Withdraw(Turn& turn, Job& job) {
  const Proposal proposal = *std::move(job.proposal);
  job.proposal.reset();
  job.chunks = {};
  const bool retracted = job.phase == Phase::kRetracting;
  if (!retracted) BackOffMore(job);
  const int64_t version = proposal.message.version;
  RecordEvent(turn, job, "withdrawn", version,
              absl::StrCat("version ", version,
                           retracted ? " was withdrawn: " : " was dropped by every rank: ",
                           proposal.withdrawal));
  EnterIdleOrHeld(turn, job);
}

// Looks whether the ranks' answers end the state.
void Conclude(Turn& turn, Job& job) {
  const Proposal& proposal = *job.proposal;
  const int32_t world_size = job.current->world_size();
  if (proposal.num_applied == world_size) {
    Commit(turn, job);
  } else if (job.phase == Phase::kQuarantine) {
    if (proposal.num_applied + proposal.num_failed == world_size) job.proposal.reset();
  } else if (proposal.num_applied > 0 && proposal.num_failed > 0) {
    Quarantine(turn, job,
               absl::StrCat("version ", proposal.message.version, " was applied by ",
                            RankList(RanksThat(*job.current, Answer::kApplied)), " and dropped by ",
                            RankList(RanksThat(*job.current, Answer::kFailed))));
  } else if (proposal.num_failed == world_size) {
    Withdraw(turn, job);
  } else if (job.phase == Phase::kPreparing &&
             proposal.num_ready + proposal.num_applied == world_size) {
    SetPhase(turn, job, Phase::kResolving);
    turn.decision.reason = absl::StrCat("every rank is READY for version ",
                                        proposal.message.version, ", their vote decides");
  }
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
  if (reported && applied.step != proposal.applied_step.value_or(applied.step)) {
    Quarantine(
        turn, job,
        absl::StrCat("rank ", speaker.index, " applied version ", applied.version, " at step ",
                     applied.step, ", another rank at step ", *proposal.applied_step));
  }
  if (reported && !proposal.applied_step) proposal.applied_step = applied.step;
  if (rank.answer == Answer::kApplied) return;
  if (rank.answer == Answer::kFailed) {
    Quarantine(turn, job,
               absl::StrCat("rank ", speaker.index, " applied version ", applied.version,
                            " after it had refused it"));
  }
  proposal.received_bytes += applied.received_bytes;
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

void Resend(Turn& turn, Job& job) {
  for (const Rank& rank : job.current->ranks) {
    if (!IsFinal(rank)) RetractFrom(turn, rank, *job.proposal);
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

void ProposeNextChunk(Turn& turn, Job& job) {
  Chunk chunk = std::move(job.chunks.rest.front());
  job.chunks.rest.pop_front();
  Proposal proposal;
  proposal.turn = turn.state.turn;
  wire::Propose& message = proposal.message;
  message.term = turn.state.term;
  message.version = job.next_version++;
  message.base_version = job.known->version;
  message.base_digest = job.known->digest;
  message.digest = DigestOf(chunk.after);
  for (const LayerId layer : chunk.layers) message.layers.push_back(chunk.after.Layer(layer));
  message.chunk = job.chunks.total - static_cast<int32_t>(job.chunks.rest.size()) - 1;
  message.num_chunks = job.chunks.total;
  message.reason = job.chunks.reason;
  proposal.after = std::make_shared<const Placement>(std::move(chunk.after));
  for (Rank& rank : job.current->ranks) rank.answer = Answer::kNone;
  StoreTermIfNeeded(turn);
  StoreJob(turn, job);
  RecordEvent(turn, job, "proposed", message.version, message.reason);
  SendToAll(turn, *job.current, message);
  job.proposal = std::move(proposal);
  SetPhase(turn, job, Phase::kPreparing);
}

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
  SetAnswer(proposal, rank, Answer::kReady);
  Conclude(turn, job);
}

void HandleNack(Turn& turn, Speaker speaker, const wire::Nack& nack) {
  if (!IsOurs(speaker, nack.version) || IsFinal(speaker.rank)) return;
  Job& job = speaker.job;
  SetAnswer(*job.proposal, speaker.rank, Answer::kFailed);
  speaker.rank.ready_version = 0;
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
  UpdateStep(speaker, applied.step);
  if (IsOurs(speaker, applied.version)) {
    CountApplied(turn, speaker, applied, true);
  } else {
    HandleForeignApplied(turn, speaker, applied);
  }
}

void HandleFailed(Turn& turn, Speaker speaker, const wire::Failed& failed) {
  Job& job = speaker.job;
  UpdateStep(speaker, failed.step);
  if (speaker.rank.ready_version == failed.version) speaker.rank.ready_version = 0;
  if (!IsOurs(speaker, failed.version)) {
    if (speaker.is_current() && !job.proposal) Recheck(turn, job, speaker.index);
    return;
  }
  if (speaker.rank.answer == Answer::kApplied) {
    Quarantine(turn, job,
               absl::StrCat("rank ", speaker.index, " dropped version ", failed.version,
                            " after it had applied it"));
    return;
  }
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

void StartRetract(Turn& turn, Job& job, const std::string& reason, bool back_off) {
  job.chunks = {};
  job.proposal->withdrawal = reason;
  if (back_off) BackOffMore(job);
  SetPhase(turn, job, Phase::kRetracting);
  RecordEvent(turn, job, "retracting", job.proposal->message.version, reason);
  Resend(turn, job);
  Conclude(turn, job);
}

void Quarantine(Turn& turn, Job& job, const std::string& reason) {
  if (job.phase == Phase::kQuarantine) return;
  job.solving = {};
  job.chunks = {};
  job.asked = {};
  SetPhase(turn, job, Phase::kQuarantine);
  const int64_t known = job.known ? job.known->version : 0;
  RecordEvent(turn, job, "quarantined", job.proposal ? job.proposal->message.version : known,
              reason);
  if (!job.proposal) return;
  job.proposal->withdrawal = reason;
  Resend(turn, job);
}

void BackOffMore(Job& job) {
  job.back_off.length = std::clamp(2 * job.back_off.length, 1, kMaxSkippedDecisions);
  job.back_off.to_skip = job.back_off.length;
}

void CheckProposalDeadline(Turn& turn, Job& job) {
  const Config& config = turn.state.config;
  const absl::Duration age = turn.now - job.nudged_at;
  const auto missed = [&job](absl::Duration deadline) {
    return absl::StrCat("within ", absl::FormatDuration(deadline), " it still waited for ",
                        WaitingFor(job));
  };
  if (job.phase == Phase::kPreparing && age >= config.prepare_deadline) {
    StartRetract(turn, job, missed(config.prepare_deadline), true);
  } else if (job.phase == Phase::kResolving && age >= config.resolve_deadline) {
    StartRetract(turn, job, missed(config.resolve_deadline), true);
  } else if (job.phase == Phase::kRetracting && age >= config.retract_deadline) {
    job.nudged_at = turn.now;
    Resend(turn, job);
    if (job.stuck_recorded) return;
    job.stuck_recorded = true;
    RecordEvent(turn, job, "stuck", job.proposal->message.version, missed(config.retract_deadline));
  }
}

}  // namespace eplb::core
