// State that all parts of one simulated run share: the virtual clock with its coming events, the
// random numbers, and a record of what was seen. One seed decides a run; nothing reads a real
// clock.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace eplb::simulation {

// Threads: not safe.
class Context {
 public:
  Context(uint64_t seed, bool verbose) : random_(seed), verbose_(verbose) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  absl::Time now() const { return now_; }
  void After(absl::Duration delay, std::function<void()> what) {
    At(now_ + delay, std::move(what));
  }
  // Events of one time happen in the order of their calls.
  void At(absl::Time when, std::function<void()> what) {
    queue_.push({std::max(when, now_), next_++, std::move(what)});
  }
  // Until `end`, or until `done` says so after something happened.
  void Run(absl::Time end, const std::function<bool()>& done) {
    while (!queue_.empty() && queue_.top().when <= end && !done()) {
      const Due due = queue_.top();
      queue_.pop();
      now_ = due.when;
      due.what();
    }
  }

  bool Chance(double probability) {
    return std::uniform_real_distribution<double>(0, 1)(random_) < probability;
  }
  int Below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    return least + (most - least) * std::uniform_real_distribution<double>(0, 1)(random_);
  }

  void Count(const std::string& name) { ++counts_[name]; }
  const std::map<std::string, int64_t>& counts() const { return counts_; }

  template <class... Parts>
  void Trace(const Parts&... parts) {
    if (!verbose_) return;
    std::printf("%10.3f %s\n", absl::ToDoubleSeconds(now_ - absl::UnixEpoch()),
                absl::StrCat(parts...).c_str());
  }
  template <class... Parts>
  void Violation(const Parts&... parts) {
    violations_.push_back(absl::StrCat(parts...));
    Trace("VIOLATION: ", violations_.back());
  }
  const std::vector<std::string>& violations() const { return violations_; }

  // Faults happen until they are switched off.
  bool faults = true;

 private:
  struct Due {
    absl::Time when;
    uint64_t order = 0;
    std::function<void()> what;
    friend bool operator<(const Due& a, const Due& b) {
      return std::pair(a.when, a.order) > std::pair(b.when, b.order);
    }
  };

  absl::Time now_ = absl::UnixEpoch();
  uint64_t next_ = 0;
  std::priority_queue<Due> queue_;
  std::mt19937_64 random_;
  const bool verbose_;
  std::map<std::string, int64_t> counts_;
  std::vector<std::string> violations_;
};

}  // namespace eplb::simulation
