#include "server/core/ranks/stall.h"

#include <algorithm>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/text.h"
#include "proto/wire/message_json.h"
#include "server/core/decisions/decide.h"
#include "server/core/decisions/prices.h"
#include "server/core/decisions/watchdog.h"
#include "server/core/ranks/run_registry.h"
#include "server/core/state/ending.h"
#include "server/core/state/sentences.h"
#include "server/core/state/state.h"
#include "server/core/state/step_rate.h"

namespace eplb::core {
namespace {

constexpr int kDecisionsMissed = 3;
constexpr int kFailedInARow = 3;
constexpr int kWithdrawnInARow = 3;
constexpr int kProposalsLookedAt = 10;
constexpr absl::Duration kLeastHung = absl::Seconds(30);
constexpr int kHungIntervals = 10;
constexpr int kHungGaps = 2;
// Compilation and the reading of data come before the first steps.
constexpr absl::Duration kSlowStart = absl::Minutes(30);
constexpr absl::Duration kRefusalMatters = absl::Minutes(10);

std::string AgeText(absl::Duration age) {
  return absl::FormatDuration(absl::Trunc(age, absl::Seconds(1)));
}

bool IsLive(const Job& job) { return job.current && job.current->ending == Ending::kLive; }

// Also of a run that is lost here and trains on.
bool StepsAreTold(const Job& job, absl::Time now) { return now <= job.current->rate.due; }

int32_t WindowSteps(const Run& run) {
  return std::max(run.report_every, run.report_interval_change.report_every);
}

// The last step that is in a complete window, or that the run began behind.
int64_t CoveredStep(const Job& job) {
  return std::max(job.current->rate.first_step, job.reports.covered_step);
}

Stall StoreStall(const State& state, const Job& job, absl::Time) {
  if (!IsLive(job)) return {};
  if (!job.store.error.ok()) {
    return {"store", absl::StrCat("nothing is proposed, the job cannot be stored: ",
                                  job.store.error.ToString())};
  }
  if (!state.term_stored) return {"store", "nothing is proposed, the term cannot be stored"};
  return {};
}

Stall StateStall(const State& state, const Job& job, absl::Time now) {
  const Run& run = *job.current;
  if (run.ending == Ending::kLost) {
    if (run.num_connected == 0 || !StepsAreTold(job, now)) return {};
    return {"lost",
            absl::StrCat("the run is lost and ", run.num_connected, " of ", run.world_size(),
                         " ranks train on here, at step ", job.step, ": ", run.end.reason())};
  }
  const absl::Duration age = StuckFor(state.config, job, now);
  if (age == absl::ZeroDuration() || !StepsAreTold(job, now)) return {};
  return {"state",
          absl::StrCat(wire::EnumText(StateOf(job.phase)), " for ", AgeText(age), ", waiting for ",
                       WaitingFor(job), "; the job trains on, at step ", job.step)};
}

Stall HungStall(const State&, const Job& job, absl::Time now) {
  const Run& run = *job.current;
  if (run.num_connected == 0) return {};
  // Before two rises nothing says how long a step takes.
  const bool has_step_rate = run.rate.told.size() >= 3;
  const absl::Duration patience =
      has_step_rate ? std::max({kLeastHung, kHungIntervals * ReportInterval(run),
                                kHungGaps * LongestGap(run.rate), kHungGaps * UsualGap(run.rate)})
                    : kSlowStart;
  const absl::Duration still = now - std::max(run.rate.began, LastRise(run.rate));
  if (still <= patience) return {};
  if (!run.asking.engine.empty()) {
    return {"hung", absl::StrCat(run.asking.engine, " asked nothing after question ", job.step,
                                 " for ", AgeText(still), has_step_rate ? ", it asked every " : "",
                                 has_step_rate ? absl::FormatDuration(absl::Trunc(
                                                     ReportInterval(run), absl::Milliseconds(1)))
                                               : "",
                                 ": its process is gone, or its own balancing has stopped")};
  }
  std::string text =
      absl::StrCat("no rank reported a step after ", job.step, " for ", AgeText(still));
  if (has_step_rate) {
    const absl::Duration window = absl::Trunc(ReportInterval(run), absl::Milliseconds(1));
    absl::StrAppend(&text, ", a window of ", WindowSteps(run), " steps took ",
                    absl::FormatDuration(window));
  }
  absl::StrAppend(&text, "; ", run.num_connected, " of ", run.world_size(), " ranks are connected");
  return {"hung", std::move(text)};
}

bool RefusesRanks(const Job& job, absl::Time now) {
  return now - job.refused.for_good_at <= kRefusalMatters;
}

// "rank 1 is 2000 steps behind with its reports; rank 1 is not connected".
std::string BehindText(const Job& job, int64_t due, absl::Time now) {
  const Run& run = *job.current;
  std::vector<int32_t> behind;
  std::vector<int32_t> away;
  int64_t most = 0;
  int64_t dropped = 0;
  for (int32_t rank = 0; rank < run.world_size(); rank += run.ranks_per_reporter()) {
    const Rank& one = run.ranks[rank];
    dropped += one.reports_dropped;
    if (one.reported_step >= due) continue;
    behind.push_back(rank);
    if (one.session == 0) away.push_back(rank);
    most = std::max(most, job.step - std::max(one.reported_step, run.rate.first_step));
  }
  std::string text = "every rank reports, but their windows do not match";
  if (!behind.empty()) {
    text = absl::StrCat(RankList(behind), behind.size() == 1 ? " is " : " are up to ", most,
                        " steps behind with ", behind.size() == 1 ? "its" : "their", " reports");
  }
  if (!away.empty()) {
    absl::StrAppend(&text, "; ", RankList(away), away.size() == 1 ? " is" : " are",
                    " not connected");
    // Why it does not come back.
    if (RefusesRanks(job, now)) absl::StrAppend(&text, "; ", job.refused.for_good);
  }
  if (dropped > 0) {
    absl::StrAppend(
        &text, "; ", dropped,
        " reports were dropped, of ranks that send more than limits.messages_per_second");
  }
  return text;
}

Stall WindowStall(const State&, const Job& job, absl::Time now) {
  const Run& run = *job.current;
  if (run.num_connected == 0 || run.rate.told.empty()) return {};
  const int64_t covered = CoveredStep(job);
  const int64_t missing = (job.step - covered) / WindowSteps(run);
  if (missing < kStallWindows || job.step - covered < kStallSteps) return {};
  const std::string since =
      job.reports.covered_step < 0 ? "yet" : absl::StrCat("since step ", covered);
  return {"windows", absl::StrCat("no load window is complete ", since, ", ", missing,
                                  " windows ago: ", BehindText(job, DueWindow(job), now))};
}

// Nothing that an operator or a setting asked for.
bool DecisionsAreDue(const State& state, const Job& job) {
  return !state.draining && !job.orders.paused && job.phase == Phase::kIdle &&
         !job.windows.complete.empty() && job.windows.newest.has_tokens &&
         !job.settings.freeze_steps.Holds(job.windows.complete.back().last_step);
}

Stall DecisionStall(const State& state, const Job& job, absl::Time now) {
  if (job.current->num_connected == 0 || !DecisionsAreDue(state, job)) return {};
  const int64_t window = WindowSteps(*job.current);
  const int32_t set = job.settings.every_steps;
  const bool asks = !job.current->asking.engine.empty();
  const int64_t every =
      std::max<int64_t>(set > 0 || asks ? EverySteps(job) : kUsualEverySteps, window);
  const int64_t since = std::max({job.decisions.last_step.value_or(-1),
                                  job.decisions.chooser.last_step, job.current->rate.first_step});
  const int64_t steps = job.windows.complete.back().last_step - since;
  if (steps < kDecisionsMissed * every) return {};
  const absl::Status may = MayDecide(state, job);
  return {"decisions",
          absl::StrCat("nothing was decided for ", steps, " steps, a decision is due every ", every,
                       ", although load windows are complete",
                       may.ok() ? "" : absl::StrCat(": ", may.message()),
                       RefusesRanks(job, now) ? absl::StrCat("; ", job.refused.for_good) : "")};
}

// The policy or its solver gives no placement.
Stall FailureStall(const State&, const Job& job, absl::Time) {
  const int64_t began = absl::ToUnixMicros(job.current->rate.began);
  const auto goes_well = [began](const v1::Plan& plan) {
    return plan.result() != v1::PLAN_RESULT_FAILED || plan.unix_micros() < began;
  };
  const auto end = std::find_if(job.plans.rbegin(), job.plans.rend(), goes_well);
  const auto failed = end - job.plans.rbegin();
  if (failed < kFailedInARow) return {};
  return {"decisions", absl::StrCat("the newest ", failed,
                                    " decisions failed, the newest: ", job.plans.back().reason())};
}

// The newest proposals of this run, newest first, but for those that a newer decision replaced.
std::vector<const v1::Plan*> NewestProposals(const Job& job) {
  std::vector<const v1::Plan*> proposals;
  for (auto plan = job.plans.rbegin(); plan != job.plans.rend(); ++plan) {
    if (plan->unix_micros() < absl::ToUnixMicros(job.current->rate.began)) break;
    const bool ended = plan->result() == v1::PLAN_RESULT_COMMITTED ||
                       plan->result() == v1::PLAN_RESULT_WITHDRAWN ||
                       plan->result() == v1::PLAN_RESULT_PARTIAL;
    if (ended && plan->replaced_by() == 0) proposals.push_back(&*plan);
    if (std::ssize(proposals) == kProposalsLookedAt) break;
  }
  return proposals;
}

Stall WithdrawalStall(const State&, const Job& job, absl::Time) {
  const std::vector<const v1::Plan*> proposals = NewestProposals(job);
  const auto failed = [](const v1::Plan* plan) {
    return plan->result() != v1::PLAN_RESULT_COMMITTED;
  };
  const auto in_a_row = std::ranges::find_if_not(proposals, failed);
  const auto count = in_a_row - proposals.begin();
  const auto most = std::ranges::count_if(proposals, failed);
  const bool often = std::ssize(proposals) == kProposalsLookedAt && 2 * most > kProposalsLookedAt;
  if (count == 0 || (count < kWithdrawnInARow && !often)) return {};
  std::string text =
      absl::StrCat(most, " of the newest ", proposals.size(),
                   " proposals were withdrawn, the newest: ", proposals.front()->reason());
  if (job.decisions.back_off.to_skip > 0) {
    absl::StrAppend(&text, "; the next ", CountText(job.decisions.back_off.to_skip, "decision"),
                    " will be skipped");
  }
  return {"withdrawn", std::move(text)};
}

Stall CandidateStall(const State& state, const Job& job, absl::Time now) {
  if (!job.candidate || job.candidate->num_connected == 0) return {};
  const Run& candidate = *job.candidate;
  const absl::Duration age = now - candidate.since;
  if (age <= state.config.gather_deadline && !TakeOverRefused(job, now)) return {};
  return {"candidate",
          absl::StrCat("run ", candidate.name, " is not balanced, ", candidate.num_hello, " of ",
                       candidate.world_size(), " ranks are registered for ", AgeText(age),
                       ", it waits for ", CandidateWaitsFor(job, now))};
}

Stall RefusalStall(const State&, const Job& job, absl::Time now) {
  if (!RefusesRanks(job, now)) return {};
  return {"refused", absl::StrCat(job.refused.for_good, "; ", job.refused.count,
                                  " registrations were refused since the daemon started")};
}

Stall FirstOf(std::initializer_list<Stall (*)(const State&, const Job&, absl::Time)> all,
              const State& state, const Job& job, absl::Time now) {
  for (const auto& see : all) {
    Stall stall = see(state, job, now);
    if (!stall.name.empty()) return stall;
  }
  return {};
}

}  // namespace

int64_t DueWindow(const Job& job) {
  if (!job.current || job.current->rate.told.empty()) return -1;
  const int64_t steps = WindowSteps(*job.current);
  const int64_t due = (job.step + 1) / steps * steps - 1 - steps;
  return due - steps >= job.current->rate.first_step ? due : -1;
}

std::optional<double> CoverageNow(const Job& job) {
  const int64_t due = DueWindow(job);
  if (due < 0) return std::nullopt;
  const Run& run = *job.current;
  int32_t reporters = 0;
  int32_t there = 0;
  for (int32_t rank = 0; rank < run.world_size(); rank += run.ranks_per_reporter()) {
    ++reporters;
    if (run.ranks[rank].reported_step >= due) ++there;
  }
  return static_cast<double>(there) / reporters;
}

Stall StallOf(const State& state, const Job& job, absl::Time now) {
  Stall stall;
  if (job.current && job.current->ending == Ending::kLost) stall = StateStall(state, job, now);
  if (IsLive(job)) {
    stall = FirstOf({&StoreStall, &StateStall, &HungStall, &WindowStall, &DecisionStall,
                     &FailureStall, &WithdrawalStall},
                    state, job, now);
  }
  if (!stall.name.empty()) return stall;
  // Stalls of other runs than the current one, which may have ended.
  return FirstOf({&CandidateStall, &RefusalStall}, state, job, now);
}

void WatchStall(DecisionContext& context, Job& job) {
  StallWatch& watch = job.stall;
  Stall seen = StallOf(context.state, job, context.now);
  if (seen.name == watch.told.name) {
    watch.told = std::move(seen);  // its figures go on
    watch.differs_since = absl::InfiniteFuture();
    return;
  }
  if (watch.differs_since == absl::InfiniteFuture()) watch.differs_since = context.now;
  if (context.now - watch.differs_since < kStallSettles) return;
  const bool over = seen.name.empty();
  // Not the job's last reason: that is of its decisions.
  RecordNotice(context, job, over ? "stalled_over" : "stalled",
               over ? absl::StrCat("balancing continues; it was stalled (", watch.told.name, ")")
                    : absl::StrCat(seen.name, ": ", seen.reason));
  watch.told = std::move(seen);
  watch.differs_since = absl::InfiniteFuture();
}

}  // namespace eplb::core
