// The thread that computes placements.
#ifndef EPLB_SERVER_BACKGROUND_SOLVER_H_
#define EPLB_SERVER_BACKGROUND_SOLVER_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/status/statusor.h"

#include "placement/placement.h"
#include "server/core/core.h"

namespace eplb {

// The policy's answer, aligned to the request's `previous`, whose topology it has.
// errors: those of MakePolicy, Policy::Solve and Align.
absl::StatusOr<Placement> SolveAligned(const core::Solve& request);

// One request after the other. A newer request of a job replaces its waiting one, so that at most
// one per job waits. threads: safe; `done` is called on the solver's thread.
class Solver {
 public:
  using Done = std::function<void(core::Solved)>;
  explicit Solver(Done done);
  // Finishes the request at work, forgets the others.
  ~Solver();
  Solver(const Solver&) = delete;
  Solver& operator=(const Solver&) = delete;

  void Post(core::Solve request);

 private:
  void Loop();

  const Done done_;
  std::mutex mutex_;  // guards what follows, but for the thread
  std::condition_variable changed_;
  std::deque<core::Solve> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_BACKGROUND_SOLVER_H_
