#include "server/core/decisions/plans.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/errors.h"
#include "server/core/decisions/prices.h"
#include "server/core/state/memory.h"

namespace eplb::core {
namespace {

void Write(DecisionContext& context, const Job& job, const v1::Plan& plan) {
  context.decision.effects.emplace_back(StorePlan{job.name, plan});
}

void Count(DecisionContext& context, v1::PlanResult result) {
  ++context.state.counters.plans[static_cast<size_t>(result)];
}

// The pause of a rollback outlives it: its reason must not speak of what did not come.
void TellFailedRollback(Job& job, const v1::Plan& plan, const std::string& why) {
  absl::string_view rest = job.orders.pause_reason;
  if (plan.policy() != wire::kRollbackPolicy || !job.orders.paused ||
      !absl::ConsumePrefix(&rest, kForRollback)) {
    return;
  }
  const size_t end = std::min(rest.find(' '), rest.size());
  const std::string moved =
      plan.chunks_committed() == 0
          ? "nothing was moved"
          : absl::StrCat(plan.chunks_committed(), " of ", plan.num_chunks(), " chunks were moved");
  job.orders.pause_reason =
      absl::StrCat("rollback to version ", rest.substr(0, end), " failed: ", why, "; ", moved,
                   "; it was asked for", rest.substr(end));
  Remember(job);
}

// Counts the prediction of a decision whose chunks all committed, once its error and what followed
// are known.
void CountPrediction(Job& job, const v1::Plan& plan) {
  const bool judged = plan.has_prediction_error() && plan.has_balancedness_seen();
  if (!judged || plan.result() != v1::PLAN_RESULT_COMMITTED) return;
  const double off = plan.balancedness_seen() - plan.balancedness_predicted();
  v1::PredictionCounts& counts = job.decisions.prediction_counts;
  if (std::abs(off) <= plan.prediction_error()) {
    counts.set_within(counts.within() + 1);
  } else if (off > 0) {
    counts.set_above(counts.above() + 1);
  } else {
    counts.set_below(counts.below() + 1);
  }
}

void ClosePlan(DecisionContext& context, Job& job, v1::Plan& plan, const std::string& why) {
  const bool committed = plan.chunks_committed() >= plan.num_chunks();
  plan.set_result(committed                      ? v1::PLAN_RESULT_COMMITTED
                  : plan.chunks_committed() == 0 ? v1::PLAN_RESULT_WITHDRAWN
                                                 : v1::PLAN_RESULT_PARTIAL);
  if (!committed) absl::StrAppend(plan.mutable_reason(), "; ", why);
  Count(context, plan.result());
  CountPrediction(job, plan);
  Write(context, job, plan);
  if (!committed) TellFailedRollback(job, plan, why);
}

// Adds a committed chunk's bytes and pause. A figure that one chunk lacks stays unknown.
// REQUIRES: plan.chunks_committed does not count the chunk yet.
void AddMeasured(v1::Plan& plan, const Proposal& proposal) {
  if (!proposal.received_bytes || !plan.has_received_bytes()) {
    plan.clear_received_bytes();
  } else {
    auto sum = static_cast<int64_t>(plan.received_bytes());
    AddCapped(sum, *proposal.received_bytes);
    plan.set_received_bytes(static_cast<uint64_t>(sum));
  }
  if (proposal.applied_step && (plan.chunks_committed() == 0 || plan.has_pause_seconds())) {
    plan.set_pause_seconds(std::max(plan.pause_seconds(), proposal.longest_pause_seconds));
  }
}

// Null when none is.
v1::ChunkTimes* ChunkInFlight(v1::Plan& plan) {
  const int last = plan.times().chunks_size() - 1;
  if (last < 0 || plan.times().chunks(last).ended_unix_micros() != 0) return nullptr;
  return plan.mutable_times()->mutable_chunks(last);
}

v1::ChunkTimes* ChunkInFlight(Job& job) {
  if (!job.proposal) return nullptr;
  v1::Plan* const plan = OpenPlan(job, job.proposal->message.decision);
  return plan == nullptr ? nullptr : ChunkInFlight(*plan);
}

// Forgets the measured balancedness of a plan. A window after an earlier version than the plan's
// last one does not measure the plan.
void ForgetSeen(v1::Plan& plan) {
  plan.clear_balancedness_seen();
  plan.clear_seen_first_step();
  plan.clear_seen_last_step();
}

bool IsOpen(const v1::Plan& plan) { return plan.result() == v1::PLAN_RESULT_PROPOSED; }

bool HasSwitched(const v1::Plan& plan) { return plan.chunks_committed() > 0; }

void NoteSeen(DecisionContext& context, Job& job) {
  const auto found = std::find_if(job.plans.rbegin(), job.plans.rend(), &HasSwitched);
  if (found == job.plans.rend() || found->has_balancedness_seen() || !job.windows.measured) return;
  const Measured& measured = *job.windows.measured;
  if (found->split() != wire::SplitName(measured.split)) return;  // figures of two kinds
  const auto ran = static_cast<int64_t>(found->last_version());
  if (measured.versions != std::vector<int64_t>{ran}) return;
  found->set_balancedness_seen(measured.balancedness);
  found->set_seen_first_step(static_cast<uint64_t>(measured.first_step));
  found->set_seen_last_step(static_cast<uint64_t>(measured.last_step));
  CountPrediction(job, *found);
  Write(context, job, *found);
}

}  // namespace

void AddCandidates(const PlannerState& state,
                   google::protobuf::RepeatedPtrField<v1::TriedCandidate>* out) {
  const std::vector<CandidateScore> scores = state.backtest.Scores();
  const size_t in_use = state.backtest.choice().value_or(scores.size() - 1);
  // Without a price the back-test counts in tokens, and with a guessed one in no seconds to show.
  const bool has_net = state.costs.priced() && state.costs.bandwidths != BandwidthSource::kAssumed;
  for (size_t i = 0; i < scores.size(); ++i) {
    const CandidateScore& score = scores[i];
    v1::TriedCandidate& one = *out->Add();
    one.set_name(NameOf(score.candidate));
    one.set_in_use(i == in_use);
    one.set_windows(static_cast<uint64_t>(score.windows));
    if (score.balancedness) one.set_balancedness(*score.balancedness);
    if (has_net && score.windows > 0) one.set_net_seconds(score.total());
    if (score.realized) one.set_realized(*score.realized);
  }
}

bool RepeatsKept(const Job& job, const v1::Plan& plan) {
  const auto is_kept = [](const v1::Plan& one) {
    return one.result() == v1::PLAN_RESULT_KEPT && one.asked_by().empty();
  };
  return Chooses(job) && !job.plans.empty() && is_kept(plan) && is_kept(job.plans.back());
}

void AddPlan(DecisionContext& context, Job& job, v1::Plan plan) {
  const bool repeats = RepeatsKept(job, plan);
  plan.set_plan(job.plans.empty() ? 1 : job.plans.back().plan() + (repeats ? 0 : 1));
  if (repeats) job.plans.pop_back();
  plan.set_unix_micros(absl::ToUnixMicros(context.now));
  plan.set_base_version(static_cast<uint64_t>(job.last_known->version));
  plan.set_received_bytes(0);
  (void)plan.mutable_times();  // also for a decision that no solver made
  Count(context, plan.result());
  job.plans.push_back(std::move(plan));
  if (std::ssize(job.plans) > kMaxPlans) job.plans.pop_front();
  ForgetOldTimes(job);
  // A proposed one is written with its first version, by NoteProposed.
  if (!repeats && !IsOpen(job.plans.back())) Write(context, job, job.plans.back());
}

void StoreRepeatedPlan(DecisionContext& context, const Job& job) {
  if (!job.plans.empty() && RepeatsKept(job, job.plans.back())) {
    Write(context, job, job.plans.back());
  }
}

v1::Plan* OpenPlan(Job& job, int64_t number) {
  const auto found =
      std::find_if(job.plans.rbegin(), job.plans.rend(),
                   [number](const v1::Plan& plan) { return std::cmp_equal(plan.plan(), number); });
  return found == job.plans.rend() || !IsOpen(*found) ? nullptr : &*found;
}

v1::PlanTimes TimesOf(const Job& job) {
  v1::PlanTimes times;
  for (const Window& window : job.windows.complete) {
    if (window.first_step == job.solving.first_step) {
      times.set_window_began_unix_micros(absl::ToUnixMicros(window.began_at));
    }
    if (window.last_step == job.solving.last_step) {
      times.set_window_complete_unix_micros(absl::ToUnixMicros(window.complete_at));
    }
  }
  times.set_solve_began_unix_micros(absl::ToUnixMicros(job.solving.began_at));
  return times;
}

void ForgetOldTimes(Job& job) {
  for (ptrdiff_t i = 0; i < std::ssize(job.plans) - kTimedPlans; ++i) {
    job.plans[static_cast<size_t>(i)].mutable_times()->clear_chunks();
  }
}

void NoteRankPrepared(Job& job, int32_t rank, absl::Time now) {
  v1::ChunkTimes* const chunk = ChunkInFlight(job);
  if (chunk == nullptr) return;
  // A rank that says it twice was PREPARED the first time.
  const auto known = [rank](const v1::ChunkRankTimes& one) {
    return std::cmp_equal(one.rank(), rank);
  };
  if (std::ranges::any_of(chunk->ranks(), known)) return;
  chunk->set_timed_ranks(chunk->timed_ranks() + 1);
  v1::ChunkRankTimes& times = *chunk->add_ranks();
  times.set_rank(static_cast<uint32_t>(rank));
  times.set_prepared_unix_micros(absl::ToUnixMicros(now));
  if (chunk->ranks_size() > kTimedRanks) chunk->mutable_ranks()->DeleteSubrange(0, 1);
}

void NoteAllPrepared(Job& job, absl::Time now) {
  if (v1::ChunkTimes* const chunk = ChunkInFlight(job)) {
    chunk->set_prepared_unix_micros(absl::ToUnixMicros(now));
  }
}

void NoteRankApplied(Job& job, int32_t rank, double pause_seconds, absl::Time now) {
  v1::ChunkTimes* const chunk = ChunkInFlight(job);
  if (chunk == nullptr) return;
  if (!chunk->has_longest_pause_seconds() || pause_seconds > chunk->longest_pause_seconds()) {
    chunk->set_longest_pause_rank(static_cast<uint32_t>(rank));
    chunk->set_longest_pause_seconds(pause_seconds);
  }
  for (v1::ChunkRankTimes& one : *chunk->mutable_ranks()) {
    if (std::cmp_not_equal(one.rank(), rank)) continue;
    one.set_applied_unix_micros(absl::ToUnixMicros(now));
    one.set_pause_seconds(pause_seconds);
  }
}

void NoteProposed(DecisionContext& context, Job& job, const Proposal& proposal) {
  v1::Plan* plan = OpenPlan(job, proposal.message.decision);
  if (plan == nullptr) return;
  const auto version = static_cast<uint64_t>(proposal.message.version);
  v1::ChunkTimes& chunk = *plan->mutable_times()->add_chunks();
  chunk.set_version(version);
  chunk.set_num_layers(static_cast<uint32_t>(proposal.message.layers.size()));
  chunk.set_proposed_unix_micros(absl::ToUnixMicros(proposal.proposed_at));
  if (plan->first_version() != 0) return;
  plan->set_first_version(version);
  plan->set_base_version(static_cast<uint64_t>(proposal.message.base_version));
  Write(context, job, *plan);
}

void NoteCommitted(DecisionContext& context, Job& job, const Proposal& proposal) {
  v1::Plan* plan = OpenPlan(job, proposal.message.decision);
  if (plan == nullptr) return;
  AddMeasured(*plan, proposal);
  plan->set_chunks_committed(plan->chunks_committed() + 1);
  plan->set_last_version(static_cast<uint64_t>(proposal.message.version));
  ForgetSeen(*plan);
  plan->set_prepare_seconds(std::max(plan->prepare_seconds(), proposal.prepare_seconds));
  if (const auto& step = proposal.applied_step) {
    plan->set_switched_step(static_cast<uint64_t>(*step));
  }
  if (v1::ChunkTimes* const chunk = ChunkInFlight(*plan)) {
    chunk->set_ended_unix_micros(absl::ToUnixMicros(context.now));
    chunk->set_committed(true);
  }
  if (plan->chunks_committed() < plan->num_chunks()) Write(context, job, *plan);
  NoteSeen(context, job);  // a rank's answer may come after the others' windows
}

void NoteMeasured(DecisionContext& context, Job& job) { NoteSeen(context, job); }

const v1::Plan* NewestSwitched(const Job& job) {
  const auto found = std::find_if(job.plans.rbegin(), job.plans.rend(), &HasSwitched);
  return found == job.plans.rend() ? nullptr : &*found;
}

void SettlePlan(DecisionContext& context, Job& job, const std::string& why) {
  const int64_t in_flight = job.proposal ? job.proposal->message.decision : 0;
  const int64_t to_come = job.chunks.rest.empty() ? 0 : job.chunks.decision;
  for (v1::Plan& plan : job.plans) {
    const auto number = static_cast<int64_t>(plan.plan());
    if (!IsOpen(plan) || number == in_flight || number == to_come) continue;
    if (v1::ChunkTimes* const chunk = ChunkInFlight(plan)) {
      chunk->set_ended_unix_micros(absl::ToUnixMicros(context.now));
    }
    const bool replaced = number < to_come;
    if (replaced) plan.set_replaced_by(static_cast<uint64_t>(to_come));
    ClosePlan(context, job, plan,
              replaced ? absl::StrCat("decision ", to_come, " replaced the rest") : why);
  }
}

void SettleOldPlan(DecisionContext& context, Job& job) {
  // A chunk is proposed only after the commit of the one before was stored, so at most the chunk in
  // flight is unknown. Versions tell no more: a new run may have reserved one between two chunks.
  const auto runs = static_cast<uint64_t>(job.last_known->version);
  const auto was_proposed = [runs](const v1::Plan& plan) {
    return IsOpen(plan) && plan.first_version() > 0 && runs >= plan.first_version();
  };
  const auto newest = std::find_if(job.plans.rbegin(), job.plans.rend(), was_proposed);
  for (v1::Plan& plan : job.plans) {
    if (!IsOpen(plan)) continue;
    const bool in_flight_ran =
        newest != job.plans.rend() && &plan == &*newest && runs > plan.last_version();
    if (in_flight_ran && plan.chunks_committed() < plan.num_chunks()) {
      plan.set_chunks_committed(plan.chunks_committed() + 1);
      plan.clear_received_bytes();
      plan.clear_pause_seconds();
      plan.set_last_version(runs);
      ForgetSeen(plan);
    }
    ClosePlan(context, job, plan, "what became of it was learned from the ranks");
  }
}

absl::StatusOr<int64_t> RollbackTargetOf(const Job& job, std::optional<int64_t> to_version) {
  if (to_version) return *to_version;
  const int64_t version = job.last_known ? job.last_known->version : 0;
  const auto plan =
      std::find_if(job.plans.rbegin(), job.plans.rend(), [version](const v1::Plan& one) {
        return std::cmp_equal(one.last_version(), version) && HasSwitched(one);
      });
  if (plan != job.plans.rend()) return static_cast<int64_t>(plan->base_version());
  return FailedPrecondition("no decision is known that led to version ", version,
                            "; name the version to return to");
}

}  // namespace eplb::core
