#include "server/core/decisions/plans.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/errors.h"
#include "server/core/state/memory.h"

namespace eplb::core {
namespace {

void Write(DecisionContext& context, const Job& job, const Plan& plan) {
  context.decision.effects.emplace_back(StorePlan{job.name, plan});
}

void Count(DecisionContext& context, PlanResult result) {
  ++context.state.counters.plans[static_cast<size_t>(result)];
}

// The pause of a rollback outlives it: its reason must not speak of what did not come.
void TellFailedRollback(Job& job, const Plan& plan, const std::string& why) {
  absl::string_view rest = job.pause_reason;
  if (plan.policy != wire::kRollbackPolicy || !job.paused ||
      !absl::ConsumePrefix(&rest, kForRollback)) {
    return;
  }
  const size_t end = std::min(rest.find(' '), rest.size());
  const std::string moved =
      plan.chunks_committed == 0
          ? "nothing was moved"
          : absl::StrCat(plan.chunks_committed, " of ", plan.num_chunks, " chunks were moved");
  job.pause_reason = absl::StrCat("rollback to version ", rest.substr(0, end), " failed: ", why,
                                  "; ", moved, "; it was asked for", rest.substr(end));
  Remember(job);
}

// Once, when both are known: that all chunks committed, and what followed.
void CountPrediction(Job& job, const Plan& plan) {
  const bool judged = plan.prediction_error && plan.balancedness_seen;
  if (!judged || plan.result != PlanResult::kCommitted) return;
  const double off = *plan.balancedness_seen - *plan.balancedness_predicted;
  int64_t& count = std::abs(off) <= *plan.prediction_error ? job.prediction_counts.within
                   : off > 0                               ? job.prediction_counts.above
                                                           : job.prediction_counts.below;
  ++count;
}

void ClosePlan(DecisionContext& context, Job& job, Plan& plan, const std::string& why) {
  plan.result = PlanResult::kPartial;
  if (plan.chunks_committed == 0) plan.result = PlanResult::kWithdrawn;
  if (plan.chunks_committed >= plan.num_chunks) plan.result = PlanResult::kCommitted;
  if (plan.result != PlanResult::kCommitted) absl::StrAppend(&plan.reason, "; ", why);
  Count(context, plan.result);
  CountPrediction(job, plan);
  Write(context, job, plan);
  if (plan.result != PlanResult::kCommitted) TellFailedRollback(job, plan, why);
}

void Add(int64_t& sum, int64_t bytes) {
  if (sum == kNotMeasured || bytes == kNotMeasured) {
    sum = kNotMeasured;
  } else {
    AddCapped(sum, bytes);
  }
}

// Null when none is.
ChunkTimes* ChunkInFlight(Plan& plan) {
  std::vector<ChunkTimes>& chunks = plan.times.chunks;
  return chunks.empty() || chunks.back().ended_at != kNoTime ? nullptr : &chunks.back();
}

ChunkTimes* ChunkInFlight(Job& job) {
  Plan* const plan = OpenPlan(job);
  return plan == nullptr ? nullptr : ChunkInFlight(*plan);
}

// Forgets the measured balancedness of a plan. A window after an earlier version than the plan's
// last one does not measure the plan.
void ForgetSeen(Plan& plan) {
  plan.balancedness_seen.reset();
  plan.seen_first_step = 0;
  plan.seen_last_step = 0;
}

void NoteSeen(DecisionContext& context, Job& job) {
  const auto found = std::find_if(job.plans.rbegin(), job.plans.rend(),
                                  [](const Plan& plan) { return plan.chunks_committed > 0; });
  if (found == job.plans.rend() || found->balancedness_seen || !job.windows.measured) return;
  const Measured& measured = *job.windows.measured;
  if (measured.split != found->split) return;  // figures of two kinds
  if (measured.versions.size() != 1 || measured.versions.front() != found->last_version) return;
  found->balancedness_seen = measured.balancedness;
  found->seen_first_step = measured.first_step;
  found->seen_last_step = measured.last_step;
  CountPrediction(job, *found);
  Write(context, job, *found);
}

}  // namespace

std::vector<TriedCandidate> CandidatesOf(const PlannerState& state) {
  std::vector<TriedCandidate> candidates;
  const std::vector<CandidateScore> scores = state.backtest.Scores();
  const size_t in_use = state.backtest.choice().value_or(scores.size() - 1);
  // Without a price the back-test counts in tokens, and with a guessed one in no seconds to show.
  const bool has_net = state.costs.priced() && state.costs.bandwidths != BandwidthSource::kAssumed;
  for (size_t i = 0; i < scores.size(); ++i) {
    candidates.push_back({.name = NameOf(scores[i].candidate),
                          .in_use = i == in_use,
                          .windows = scores[i].windows,
                          .balancedness = scores[i].balancedness.value_or(0),
                          .net_seconds = has_net && scores[i].windows > 0
                                             ? std::optional(scores[i].total())
                                             : std::nullopt,
                          .realized = scores[i].realized});
  }
  return candidates;
}

void AddPlan(DecisionContext& context, Job& job, Plan plan) {
  plan.plan = job.plans.empty() ? 1 : job.plans.back().plan + 1;
  plan.decided_at = context.now;
  plan.base_version = job.last_known->version;
  Count(context, plan.result);
  job.plans.push_back(std::move(plan));
  if (std::ssize(job.plans) > kMaxPlans) job.plans.pop_front();
  ForgetOldTimes(job);
  // A proposed one is written with its first version, by NoteProposed.
  if (job.plans.back().result != PlanResult::kProposed) Write(context, job, job.plans.back());
}

Plan* OpenPlan(Job& job) {
  const bool open = !job.plans.empty() && job.plans.back().result == PlanResult::kProposed;
  return open ? &job.plans.back() : nullptr;
}

PlanTimes TimesOf(const Job& job) {
  PlanTimes times;
  for (const Window& window : job.windows.complete) {
    if (window.first_step == job.solving.first_step) times.window_began_at = window.began_at;
    if (window.last_step == job.solving.last_step) times.window_complete_at = window.complete_at;
  }
  times.solve_began_at = job.solving.began_at;
  return times;
}

void ForgetOldTimes(Job& job) {
  for (ptrdiff_t i = 0; i < std::ssize(job.plans) - kTimedPlans; ++i) {
    job.plans[static_cast<size_t>(i)].times.chunks.clear();
  }
}

void NoteRankPrepared(Job& job, int32_t rank, absl::Time now) {
  ChunkTimes* const chunk = ChunkInFlight(job);
  if (chunk == nullptr) return;
  // A rank that says it twice was PREPARED the first time.
  const auto known = [rank](const RankTimes& one) { return one.rank == rank; };
  if (std::ranges::any_of(chunk->ranks, known)) return;
  ++chunk->timed_ranks;
  chunk->ranks.push_back({.rank = rank, .prepared_at = now});
  if (std::ssize(chunk->ranks) > kTimedRanks) chunk->ranks.erase(chunk->ranks.begin());
}

void NoteAllPrepared(Job& job, absl::Time now) {
  if (ChunkTimes* const chunk = ChunkInFlight(job)) chunk->prepared_at = now;
}

void NoteRankApplied(Job& job, int32_t rank, double pause_seconds, absl::Time now) {
  ChunkTimes* const chunk = ChunkInFlight(job);
  if (chunk == nullptr) return;
  if (pause_seconds > chunk->longest_pause_seconds) {
    chunk->longest_pause_rank = rank;
    chunk->longest_pause_seconds = pause_seconds;
  }
  for (RankTimes& one : chunk->ranks) {
    if (one.rank != rank) continue;
    one.applied_at = now;
    one.pause_seconds = pause_seconds;
  }
}

void NoteProposed(DecisionContext& context, Job& job, const Proposal& proposal) {
  Plan* plan = OpenPlan(job);
  if (plan == nullptr) return;
  plan->times.chunks.push_back({.version = proposal.message.version,
                                .num_layers = static_cast<int32_t>(proposal.message.layers.size()),
                                .proposed_at = proposal.proposed_at});
  if (plan->first_version != 0) return;
  plan->first_version = proposal.message.version;
  Write(context, job, *plan);
}

void NoteCommitted(DecisionContext& context, Job& job, const Proposal& proposal) {
  Plan* plan = OpenPlan(job);
  if (plan == nullptr) return;
  ++plan->chunks_committed;
  plan->last_version = proposal.message.version;
  ForgetSeen(*plan);
  Add(plan->received_bytes, proposal.received_bytes);
  plan->prepare_seconds = std::max(plan->prepare_seconds.value_or(0), proposal.prepare_seconds);
  if (plan->pause_seconds != kNotMeasured) {
    plan->pause_seconds = std::max(plan->pause_seconds, proposal.longest_pause_seconds);
  }
  plan->switched_step = proposal.applied_step.value_or(plan->switched_step);
  if (ChunkTimes* const chunk = ChunkInFlight(*plan)) {
    chunk->ended_at = context.now;
    chunk->committed = true;
  }
  if (plan->chunks_committed < plan->num_chunks) Write(context, job, *plan);
  NoteSeen(context, job);  // a rank's answer may come after the others' windows
}

void NoteMeasured(DecisionContext& context, Job& job) {
  const Measured& measured = *job.windows.measured;
  if (measured.peak_load_without_eplb) {
    ++job.account.windows;
    job.account.saved_peak_tokens += *measured.peak_load_without_eplb - measured.peak_load;
  }
  NoteSeen(context, job);
}

const Plan* NewestSwitched(const Job& job) {
  const auto found = std::find_if(job.plans.rbegin(), job.plans.rend(),
                                  [](const Plan& plan) { return plan.chunks_committed > 0; });
  return found == job.plans.rend() ? nullptr : &*found;
}

void SettlePlan(DecisionContext& context, Job& job, const std::string& why) {
  Plan* plan = OpenPlan(job);
  if (plan == nullptr || job.proposal || !job.chunks.rest.empty()) return;
  if (ChunkTimes* const chunk = ChunkInFlight(*plan)) chunk->ended_at = context.now;
  ClosePlan(context, job, *plan, why);
}

void SettleOldPlan(DecisionContext& context, Job& job) {
  Plan* plan = OpenPlan(job);
  if (plan == nullptr) return;
  // A chunk is proposed only after the commit of the one before was stored, so at most the chunk in
  // flight is unknown. Versions tell no more: a new run may have reserved one between two chunks.
  const int64_t known = std::max(plan->first_version - 1, plan->last_version);
  const bool in_flight_ran = plan->first_version > 0 && job.last_known->version > known;
  if (in_flight_ran && plan->chunks_committed < plan->num_chunks) {
    ++plan->chunks_committed;
    plan->received_bytes = kNotMeasured;
    plan->pause_seconds = kNotMeasured;
    plan->last_version = job.last_known->version;
    ForgetSeen(*plan);
  }
  ClosePlan(context, job, *plan, "what became of it was learned from the ranks");
}

absl::StatusOr<int64_t> RollbackTargetOf(const Job& job, std::optional<int64_t> to_version) {
  if (to_version) return *to_version;
  const int64_t version = job.last_known ? job.last_known->version : 0;
  const auto plan = std::find_if(job.plans.rbegin(), job.plans.rend(), [version](const Plan& one) {
    return one.last_version == version && one.chunks_committed > 0;
  });
  if (plan != job.plans.rend()) return plan->base_version;
  return FailedPrecondition("no decision is known that led to version ", version,
                            "; name the version to return to");
}

}  // namespace eplb::core
