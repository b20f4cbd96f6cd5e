// Names of the jobs whose ranks a standby refuses.
#pragma once

#include <cstddef>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace eplb {

inline constexpr size_t kMaxRefusedJobs = 8;
inline constexpr ptrdiff_t kMaxRefusedJobsOfHost = 2;

// A random sample of at most kMaxRefusedJobs names, so that names that a stranger invents do not
// keep out the real ones. threads: safe.
class RefusedJobs {
 public:
  // host: HostOf the rank's peer.
  void Add(const std::string& host, const std::string& job);
  // Returns the names that were added since the previous call, and begins a new sample.
  std::set<std::string> Take();

 private:
  struct Refused {
    std::string host;
    std::string job;
  };

  std::mutex mutex_;  // guards what follows
  std::mt19937_64 random_{std::random_device()()};
  std::vector<Refused> sample_;
  size_t seen_ = 0;  // names in this sample and names that a place was drawn for
};

}  // namespace eplb
