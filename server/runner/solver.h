// The threads that compute placements.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

#include "server/core/values/events.h"

namespace eplb {

// Turns of jobs at a thing that they use one after the other.

// Recent use by job: a second counts half after kHalfLife. memory: the jobs that used anything in
// the last hours. threads: one at a time.
class FairShare {
 public:
  static constexpr absl::Duration kHalfLife = absl::Minutes(5);

  void Spend(const std::string& job, absl::Duration used, absl::Time now);
  // Seconds.
  double Used(const std::string& job, absl::Time now) const;

 private:
  struct Share {
    double seconds = 0;
    absl::Time at;
  };
  static double SecondsOf(const Share& share, absl::Time now);
  std::map<std::string, Share> shares_;
};

// At most one request of a job is at work and at most one waits: a newer one replaces it. Next is
// the job that used the solver least lately, so that a large job delays the others by one solve.
// threads: safe; `started` and `done` are called on the solver's threads.
class Solver {
 public:
  struct Sinks {
    std::function<void(core::SolveStarted)> started = {};
    std::function<void(core::Solved)> done = {};
  };
  Solver(Sinks sinks, int32_t num_threads);
  // Abandons what is at work, forgets the others.
  ~Solver();
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;

  void Post(core::Solve request);
  // Forgets this request, or abandons it soon; `done` is not called for it from then on.
  void Cancel(const core::CancelSolve& which);

 private:
  struct Work {
    explicit Work(core::Solve given) : request(std::move(given)) {}
    const core::Solve request;
    std::atomic<bool> abandoned = false;
  };
  void Loop();
  // REQUIRES: mutex_ is held. End when every request that waits is of a job at work.
  std::deque<core::Solve>::iterator Next();
  bool IsAtWork(const std::string& job) const;
  void Compute(const Work& work);

  const Sinks sinks_;
  std::mutex mutex_;  // guards what follows, but for the threads
  std::condition_variable changed_;
  std::deque<core::Solve> waiting_;
  std::list<Work> at_work_;
  FairShare used_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace eplb
