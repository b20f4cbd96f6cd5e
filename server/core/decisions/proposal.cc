#include "server/core/decisions/proposal.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "base/text.h"
#include "server/core/decisions/decide.h"
#include "server/core/decisions/plans.h"
#include "server/core/decisions/prices.h"
#include "server/core/decisions/recovery.h"
#include "server/core/decisions/versions.h"
#include "server/core/decisions/watchdog.h"
#include "server/core/state/chunking.h"
#include "server/core/state/memory.h"
#include "server/core/state/sentences.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr int32_t kMaxSkippedDecisions = 64;
constexpr int32_t kMaxSkippedQuestions = 4;  // minutes lie between an engine's
constexpr int kMaxPauses = 32;               // chunks whose pause is remembered

void Count(Proposal& proposal, Answer answer, int32_t change) {
  if (answer == Answer::kPrepared) proposal.num_prepared += change;
  if (answer == Answer::kApplied) proposal.num_applied += change;
  if (answer == Answer::kFailed) proposal.num_failed += change;
}

std::vector<int32_t> RanksThat(const Run& run, Answer answer) {
  std::vector<int32_t> ranks;
  for (int32_t index = 0; index < run.world_size(); ++index) {
    if (run.ranks[index].answer == answer) ranks.push_back(index);
  }
  return ranks;
}

// REQUIRES: job.last_known is still the placement before the proposal.
void AddMoves(DecisionContext& context, const Job& job) {
  absl::StatusOr<MoveSummary> moves;
  {
    const ReadersIn readers(context.lock);
    moves = SummariseMoves(*job.last_known->placement, *job.proposal->after);
  }
  if (moves.ok()) context.state.counters.transfers += moves->transfers;
}

// Measures the switch's pause for the metrics and for the length of the next chunks.
void MeasureProposal(DecisionContext& context, Job& job, const Proposal& proposal) {
  Counters& counters = context.state.counters;
  AddCapped(counters.received_bytes, proposal.received_bytes.value_or(0));
  job.decisions.account.pause_seconds += proposal.longest_pause_seconds;
  if (proposal.most_received_bytes == 0) return;
  std::deque<MeasuredPause>& pauses = job.decisions.pauses;
  pauses.push_back({.bytes = proposal.most_received_bytes,
                    .seconds = proposal.longest_pause_seconds,
                    .is_first = pauses.empty()});
  const bool shows_little = std::ssize(pauses) > kLeastMeasured && pauses.front().is_first;
  if (std::ssize(pauses) > kMaxPauses || shows_little) pauses.pop_front();
}

// While the chunk before it is in flight, so that nothing waits for it at the commit.
void CompleteNextChunk(DecisionContext& context, Job& job) {
  if (job.chunks.rest.empty()) return;
  Chunk next = job.chunks.rest.front();
  absl::Status status;
  {
    const ReadersIn readers(context.lock);
    status = Complete(*job.proposal->after, next);
  }
  if (status.ok()) {
    job.chunks.rest.front() = std::move(next);
    return;
  }
  StopSolve(context, job);  // its answer would build on these chunks
  job.chunks.rest.clear();
  RecordEvent(
      context, job, "left_out", job.proposal->message.version,
      absl::StrCat("the chunks after this one do not form a valid placement: ", status.ToString()));
}

// The next chunk in parts, or joined with those behind it; nothing of it where it is right as it
// is. `taken`: how many chunks that replaces.
absl::StatusOr<std::vector<Chunk>> CutToFit(const Job& job, const Costs& costs, size_t& taken) {
  const BoundaryLimits limits = LimitsOf(job);
  const std::deque<Chunk>& rest = job.chunks.rest;
  const Placement& before = *job.proposal->after;
  Chunk next = rest.front();
  taken = 1;
  if (limits.seconds_per_byte == 0) return std::vector<Chunk>();  // nothing was measured yet
  if (limits.fixed_seconds + static_cast<double>(next.incoming_bytes) * limits.seconds_per_byte >
      limits.max_pause_seconds) {
    return CutAgain(before, next, costs, limits);
  }
  while (taken < rest.size() && Join(rest[taken], limits, next)) ++taken;
  if (taken == 1) return std::vector<Chunk>();
  EPLB_RETURN_IF_ERROR(Complete(before, next));
  return std::vector<Chunk>{std::move(next)};
}

// The next chunk was cut by what was known before this boundary.
void CutNextChunk(DecisionContext& context, Job& job) {
  if (job.chunks.rest.empty()) return;
  size_t taken = 0;
  absl::StatusOr<std::vector<Chunk>> cut;
  {
    const ReadersIn readers(context.lock);
    cut = CutToFit(job, CostsOf(context.state, job), taken);
  }
  if (!cut.ok() || cut->size() == taken || cut->empty()) return;
  const auto more = static_cast<int32_t>(std::ssize(*cut)) - static_cast<int32_t>(taken);
  std::deque<Chunk>& rest = job.chunks.rest;
  rest.erase(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(taken));
  rest.insert(rest.begin(), std::make_move_iterator(cut->begin()),
              std::make_move_iterator(cut->end()));
  job.chunks.total += more;
  if (v1::Plan* const plan = OpenPlan(job, job.chunks.decision)) {
    plan->set_num_chunks(static_cast<uint32_t>(static_cast<int64_t>(plan->num_chunks()) + more));
  }
}

// How the chunk was switched. An engine tells only that it was.
std::string CommittedText(const Run& run, const Proposal& proposal) {
  const wire::Propose& message = proposal.message;
  if (const std::string& engine = run.asking.engine; !engine.empty()) {
    return absl::StrCat("version ", message.version, " was committed: ", engine, " took it");
  }
  return absl::StrFormat(
      "version %d (chunk %d of %d) was committed at step %s: %s received, longest pause %.3f s",
      message.version, message.chunk + 1, message.num_chunks,
      proposal.applied_step ? absl::StrCat(*proposal.applied_step) : "unknown",
      proposal.received_bytes ? BytesText(*proposal.received_bytes) : "an unknown number of bytes",
      proposal.longest_pause_seconds);
}

// All ranks run the proposal: it is the current placement, whatever the state was.
void Commit(DecisionContext& context, Job& job) {
  AddMoves(context, job);
  MeasureProposal(context, job, *job.proposal);
  CutNextChunk(context, job);
  const Proposal proposal = *std::move(job.proposal);
  job.proposal.reset();
  const wire::Propose& message = proposal.message;
  job.last_known = LastKnownPlacement{message.version, message.digest, proposal.after};
  NoteRan(job, message.version, message.digest);
  job.decisions.back_off = {};
  ++job.decisions.commits;
  Remember(job);
  StoreJob(context, job);
  RecordEvent(context, job, "committed", message.version, CommittedText(*job.current, proposal));
  NoteCommitted(context, job, proposal);
  const double most = absl::ToDoubleSeconds(job.settings.max_pause);
  if (proposal.longest_pause_seconds > most) {
    RecordEvent(context, job, "pause_exceeded", message.version,
                absl::StrFormat("the switch to version %d paused a rank for %.3f s, max_pause is "
                                "%.3f s; later chunks will be shorter where they can",
                                message.version, proposal.longest_pause_seconds, most));
  }
  const bool all_here = job.current->num_connected == job.current->world_size();
  const bool paused = (job.orders.paused || job.settings.observe) && !job.chunks.despite_pause;
  const bool go_on =
      job.phase != Phase::kQuarantine && all_here && !context.state.draining && !paused;
  const std::string why_not = go_on ? WhyNotNextChunk(job) : "";
  if (!go_on || !why_not.empty()) {
    if (!job.chunks.rest.empty()) StopSolve(context, job);
    job.chunks = {};
  }
  SettlePlan(context, job,
             paused             ? "the job was paused, or is only observed from now on"
             : !all_here        ? "not every rank was connected"
             : !why_not.empty() ? why_not
                                : "no more chunks were proposed");
  if (job.phase == Phase::kQuarantine) return;
  if (job.chunks.rest.empty()) {
    job.chunks = {};
    EnterIdleOrRecovery(context, job);
  } else {
    ProposeNextChunk(context, job);
  }
}

// No rank holds the proposal any more and none ran it.
void Withdraw(DecisionContext& context, Job& job) {
  StopSolve(context, job);
  const Proposal proposal = *std::move(job.proposal);
  job.proposal.reset();
  job.chunks = {};
  const bool cancelled = job.phase == Phase::kCancelling;
  if (!cancelled) BackOffMore(job);
  const int64_t version = proposal.message.version;
  RecordEvent(context, job, "withdrawn", version,
              absl::StrCat("version ", version,
                           cancelled ? " was withdrawn: " : " was dropped by every rank: ",
                           proposal.withdrawal));
  SettlePlan(context, job, proposal.withdrawal);
  EnterIdleOrRecovery(context, job);
}

// "; the ranks vote every 64 steps, 768 s apart", where that is known.
std::string VotesText(const Run& run) {
  const double seconds = absl::ToDoubleSeconds(VoteInterval(run));
  if (seconds <= 0) return "";
  return absl::StrFormat("; the ranks vote every %d steps, %.3g s apart", run.vote_every, seconds);
}

void Resend(DecisionContext& context, Job& job) {
  for (const Rank& rank : job.current->ranks) {
    if (!IsFinal(rank)) CancelFrom(context, rank, *job.proposal);
  }
}

}  // namespace

bool IsFinal(const Rank& rank) {
  return rank.answer == Answer::kApplied || rank.answer == Answer::kFailed;
}

void SetAnswer(Proposal& proposal, Rank& rank, Answer answer) {
  Count(proposal, rank.answer, -1);
  rank.answer = answer;
  Count(proposal, rank.answer, 1);
}

void CancelFrom(DecisionContext& context, const Rank& rank, const Proposal& proposal) {
  SendTo(context, rank, wire::Cancel{proposal.message.version, proposal.withdrawal});
}

void Conclude(DecisionContext& context, Job& job) {
  const Proposal& proposal = *job.proposal;
  const int32_t world_size = job.current->world_size();
  if (proposal.num_applied == world_size) {
    Commit(context, job);
  } else if (job.phase == Phase::kQuarantine) {
    if (proposal.num_applied + proposal.num_failed < world_size) return;
    const std::string why = proposal.withdrawal;
    job.proposal.reset();
    SettlePlan(context, job, why);
  } else if (proposal.num_applied > 0 && proposal.num_failed > 0) {
    Quarantine(context, job,
               absl::StrCat("version ", proposal.message.version, " was applied by ",
                            RankList(RanksThat(*job.current, Answer::kApplied)), " and dropped by ",
                            RankList(RanksThat(*job.current, Answer::kFailed))));
  } else if (proposal.num_failed == world_size) {
    Withdraw(context, job);
  } else if (job.phase == Phase::kPreparing &&
             proposal.num_prepared + proposal.num_applied == world_size) {
    job.proposal->prepare_seconds = absl::ToDoubleSeconds(context.now - proposal.proposed_at);
    context.state.counters.prepare_seconds.Add(proposal.prepare_seconds);
    NoteAllPrepared(job, context.now);
    SetPhase(context, job, Phase::kVoting);
    context.decision.reason = absl::StrCat("every rank is PREPARED for version ",
                                           proposal.message.version, ", their vote decides");
  }
}

void ProposeNextChunk(DecisionContext& context, Job& job, std::optional<DoneRequest> done) {
  Chunk chunk = std::move(job.chunks.rest.front());
  job.chunks.rest.pop_front();
  Proposal proposal;
  proposal.decision_count = context.state.decision_count;
  wire::Propose& message = proposal.message;
  message.term = job.term;
  message.version = job.versions.next++;
  message.base_version = job.last_known->version;
  message.base_digest = job.last_known->digest;
  message.digest = chunk.digest;
  message.layers = chunk.layers;
  message.chunk = job.chunks.total - static_cast<int32_t>(job.chunks.rest.size()) - 1;
  message.num_chunks = job.chunks.total;
  message.reason = job.chunks.reason;
  message.decided_first_step = job.chunks.decided_first_step;
  message.decided_last_step = job.chunks.decided_last_step;
  message.decision = job.chunks.decision;
  message.policy = job.chunks.policy;
  message.asked_by = job.chunks.asked_by;
  proposal.after = std::move(chunk.after);
  for (Rank& rank : job.current->ranks) rank.answer = Answer::kNone;
  proposal.proposed_at = context.now;
  StoreTermIfNeeded(context);
  StoreJob(context, job, std::move(done));
  RecordEvent(context, job, "proposed", message.version, message.reason);
  NoteProposed(context, job, proposal);
  SendToAll(context, *job.current, message);
  job.proposal = std::move(proposal);
  SetPhase(context, job, Phase::kPreparing);
  CompleteNextChunk(context, job);
}

void StartCancel(DecisionContext& context, Job& job, const std::string& reason, bool back_off) {
  job.chunks = {};
  job.proposal->withdrawal = reason;
  if (back_off) BackOffMore(job);
  SetPhase(context, job, Phase::kCancelling);
  RecordEvent(context, job, "cancelling", job.proposal->message.version, reason);
  Resend(context, job);
  Conclude(context, job);
}

void Quarantine(DecisionContext& context, Job& job, const std::string& reason) {
  if (job.phase == Phase::kQuarantine) return;
  StopSolve(context, job);
  job.chunks = {};
  job.pending_fetch = {};
  SetPhase(context, job, Phase::kQuarantine);
  job.quarantine = reason;
  Remember(job);
  const int64_t known = job.last_known ? job.last_known->version : 0;
  RecordEvent(context, job, "quarantined", job.proposal ? job.proposal->message.version : known,
              reason);
  if (!job.proposal) return;
  job.proposal->withdrawal = reason;
  Resend(context, job);
}

void BackOffMore(Job& job) {
  job.decisions.back_off.length =
      std::clamp(2 * job.decisions.back_off.length, 1,
                 job.current->asking.engine.empty() ? kMaxSkippedDecisions : kMaxSkippedQuestions);
  job.decisions.back_off.to_skip = job.decisions.back_off.length;
  Remember(job);
}

void CheckProposalDeadline(DecisionContext& context, Job& job) {
  const Config& config = context.state.config;
  const absl::Duration age = context.now - job.in_phase.retried_at;
  const auto missed = [&job](absl::Duration deadline) {
    return absl::StrCat("within ", absl::FormatDuration(deadline), " it still waited for ",
                        WaitingFor(job));
  };
  if (job.phase == Phase::kPreparing && age >= config.prepare_deadline) {
    StartCancel(context, job, missed(config.prepare_deadline), true);
  } else if (job.phase == Phase::kVoting && age >= DeadlineOf(config, job)) {
    StartCancel(context, job,
                absl::StrCat(missed(DeadlineOf(config, job)), VotesText(*job.current)), true);
  } else if (job.phase == Phase::kCancelling && age >= config.cancel_deadline) {
    job.in_phase.retried_at = context.now;
    Resend(context, job);
    const absl::Duration deadline = DeadlineOf(config, job);
    if (job.in_phase.stuck_recorded || context.now - job.in_phase.since < deadline) return;
    job.in_phase.stuck_recorded = true;
    RecordEvent(context, job, "stuck", job.proposal->message.version, missed(deadline));
  } else if (job.phase == Phase::kQuarantine && job.proposal && age >= config.cancel_deadline) {
    job.in_phase.retried_at = context.now;
    Resend(context, job);
  }
}

}  // namespace eplb::core
