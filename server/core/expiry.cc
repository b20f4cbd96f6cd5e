#include "server/core/expiry.h"

#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

#include "server/core/ending.h"

namespace eplb::core {
namespace {

using Jobs = std::map<std::string, Job>;

bool HasEnded(const Job& job) {
  const RunEnd* end = EndOf(job);
  return end != nullptr && end->how != RunEnding::kLost;
}

Jobs::iterator Remove(Turn& turn, Jobs::iterator found, const std::string& why) {
  const Job& job = found->second;
  ++turn.state.counters.jobs_expired;
  turn.decision.effects.emplace_back(Forget{job.name});
  turn.decision.effects.emplace_back(
      Record{JobEvent{.job = job.name,
                      .name = "expired",
                      .version = job.known ? job.known->version : 0,
                      .reason = absl::StrCat("job ", job.name, " is forgotten: ", why)}});
  return turn.state.jobs.erase(found);
}

}  // namespace

bool HasSession(const Job& job) {
  return (job.current && job.current->num_connected > 0) ||
         (job.candidate && job.candidate->num_connected > 0);
}

void ExpireJobs(Turn& turn) {
  Jobs& jobs = turn.state.jobs;
  const absl::Duration expiry = turn.state.config.job_expiry;
  for (auto job = jobs.begin(); job != jobs.end();) {
    absl::Time& since = job->second.unattended_since;
    if (HasSession(job->second)) {
      since = absl::InfiniteFuture();
    } else if (since == absl::InfiniteFuture()) {
      since = turn.now;
    }
    if (turn.now - since < expiry) {
      ++job;
      continue;
    }
    job =
        Remove(turn, job, absl::StrCat("no rank was connected for ", absl::FormatDuration(expiry)));
  }
}

void MakeRoom(Turn& turn) {
  Jobs& jobs = turn.state.jobs;
  bool forgot = false;
  for (auto job = jobs.begin(); job != jobs.end();) {
    if (HasSession(job->second) || job->second.known) {
      ++job;
      continue;
    }
    job = Remove(turn, job, "the table of jobs is full and none of its ranks is connected");
    forgot = true;
  }
  if (forgot) return;
  auto oldest = jobs.end();
  for (auto job = jobs.begin(); job != jobs.end(); ++job) {
    if (!HasEnded(job->second) || HasSession(job->second)) continue;
    if (oldest == jobs.end() || job->second.unattended_since < oldest->second.unattended_since) {
      oldest = job;
    }
  }
  if (oldest == jobs.end()) return;
  (void)Remove(turn, oldest, "the table of jobs is full and it ended longest ago");
}

}  // namespace eplb::core
