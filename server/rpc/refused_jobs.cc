#include "server/rpc/refused_jobs.h"

#include <algorithm>
#include <utility>

namespace eplb {

void RefusedJobs::Add(const std::string& host, const std::string& job) {
  const std::lock_guard lock(mutex_);
  const auto is_job = [&job](const Refused& one) { return one.job == job; };
  if (std::ranges::any_of(sample_, is_job)) return;
  const auto is_of_host = [&host](const Refused& one) { return one.host == host; };
  if (std::ranges::count_if(sample_, is_of_host) >= kMaxRefusedJobsOfHost) {
    // Only a name of the same host gives way.
    const bool is_drawn = std::bernoulli_distribution(0.5)(random_);
    if (is_drawn) std::ranges::find_if(sample_, is_of_host)->job = job;
    return;
  }
  ++seen_;
  if (sample_.size() < kMaxRefusedJobs) {
    sample_.push_back({.host = host, .job = job});
    return;
  }
  const size_t place = std::uniform_int_distribution<size_t>(0, seen_ - 1)(random_);
  if (place < kMaxRefusedJobs) sample_[place] = {.host = host, .job = job};
}

std::set<std::string> RefusedJobs::Take() {
  const std::lock_guard lock(mutex_);
  std::set<std::string> jobs;
  for (Refused& one : sample_) jobs.insert(std::move(one.job));
  sample_.clear();
  seen_ = 0;
  return jobs;
}

}  // namespace eplb
