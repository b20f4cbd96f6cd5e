#include "server/core/ranks/expiry.h"

#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

#include "server/core/state/ending.h"

namespace eplb::core {
namespace {

using Jobs = std::map<std::string, Job>;

bool HasEnded(const Job& job) {
  const v1::RunEnd* end = EndOf(job);
  return end != nullptr && end->ending() != v1::RUN_ENDING_LOST;
}

// An operator stopped it, and would not see that it goes on: forgotten only when there is no other.
bool IsStopped(const Job& job) {
  const auto mode = job.orders.patch.find("mode");
  const bool observes = mode != job.orders.patch.end() && mode->second == Scalar("observe");
  return job.orders.paused || observes || job.phase == Phase::kQuarantine ||
         !job.quarantine.empty();
}

// Which job makes room first; none for one that does not.
std::optional<std::tuple<bool, bool, absl::Time>> OrderOfLeaving(const DecisionContext& context,
                                                                 const Job& job) {
  if (HasSession(job)) return std::nullopt;
  const bool ended = HasEnded(job);
  // Ranks of a job that did not end may be on the way back.
  const absl::Duration away = context.now - job.unattended_since;
  if (!ended && away < context.state.config.session_grace) return std::nullopt;
  return std::tuple(IsStopped(job), !ended, job.unattended_since);
}

std::string WhyItLeaves(const DecisionContext& context, const Job& job) {
  const std::string full = "the table of jobs is full and ";
  const std::string stopped = IsStopped(job) ? ", although it was stopped: no other is left" : "";
  if (HasEnded(job)) return absl::StrCat(full, "it ended longest ago", stopped);
  const absl::Duration away = absl::Trunc(context.now - job.unattended_since, absl::Seconds(1));
  return absl::StrCat(full, "its ranks have been away for ", absl::FormatDuration(away), stopped);
}

Jobs::iterator Remove(DecisionContext& context, Jobs::iterator found, const std::string& why) {
  Job& job = found->second;
  ++context.state.counters.jobs_expired;
  StopSolve(context, job);
  context.decision.effects.emplace_back(Forget{job.name});
  context.decision.effects.emplace_back(
      RecordOf(job, "expired", absl::StrCat("job ", job.name, " is forgotten: ", why)));
  return context.state.jobs.erase(found);
}

}  // namespace

bool HasSession(const Job& job) {
  return (job.current && job.current->num_connected > 0) ||
         (job.candidate && job.candidate->num_connected > 0);
}

void ExpireJobs(DecisionContext& context) {
  Jobs& jobs = context.state.jobs;
  const absl::Duration expiry = context.state.config.job_expiry;
  for (auto job = jobs.begin(); job != jobs.end();) {
    absl::Time& since = job->second.unattended_since;
    if (HasSession(job->second)) {
      since = absl::InfiniteFuture();
    } else if (since == absl::InfiniteFuture()) {
      since = context.now;
    }
    if (context.now - since < expiry || IsStopped(job->second)) {
      ++job;
      continue;
    }
    job = Remove(context, job,
                 absl::StrCat("no rank was connected for ", absl::FormatDuration(expiry)));
  }
}

void MakeRoom(DecisionContext& context) {
  Jobs& jobs = context.state.jobs;
  bool forgot = false;
  for (auto job = jobs.begin(); job != jobs.end();) {
    if (HasSession(job->second) || job->second.last_known || IsStopped(job->second)) {
      ++job;
      continue;
    }
    job = Remove(context, job, "the table of jobs is full and none of its ranks is connected");
    forgot = true;
  }
  if (forgot) return;
  auto first = jobs.end();
  for (auto job = jobs.begin(); job != jobs.end(); ++job) {
    const auto order = OrderOfLeaving(context, job->second);
    if (!order) continue;
    if (first == jobs.end() || *order < *OrderOfLeaving(context, first->second)) first = job;
  }
  if (first == jobs.end()) return;
  const std::string why = WhyItLeaves(context, first->second);
  (void)Remove(context, first, why);
}

}  // namespace eplb::core
