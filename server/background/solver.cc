#include "server/background/solver.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "placement/align.h"
#include "placement/registry.h"
#include "placement/status_macros.h"
#include "server/runner/monotonic_clock.h"

namespace eplb {

absl::StatusOr<Placement> SolveAligned(const core::Solve& request) {
  if (request.load == nullptr || request.previous == nullptr) {
    return absl::InternalError("a request to solve has no load or no previous placement");
  }
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy, MakePolicy(request.policy_name, {}));
  std::vector<Load> recent;
  recent.reserve(request.recent.size());
  for (const std::shared_ptr<const Load>& window : request.recent) recent.push_back(*window);
  EPLB_ASSIGN_OR_RETURN(const Placement next,
                        policy->Solve({.load = *request.load,
                                       .topology = request.previous->topology(),
                                       .previous = request.previous.get(),
                                       .recent = recent}));
  return Align(*request.previous, next);
}

Solver::Solver(Done done) : done_(std::move(done)), thread_([this] { Loop(); }) {}

Solver::~Solver() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Solver::Post(core::Solve request) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_,
                  [&request](const core::Solve& other) { return other.job == request.job; });
    waiting_.push_back(std::move(request));
  }
  changed_.notify_all();
}

void Solver::Loop() {
  for (;;) {
    core::Solve request;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      if (stopping_) return;
      request = std::move(waiting_.front());
      waiting_.pop_front();
    }
    const absl::Time start = MonotonicNow();
    absl::StatusOr<Placement> placement = SolveAligned(request);
    done_({.job = request.job,
           .solve_id = request.solve_id,
           .placement = std::move(placement),
           .seconds = absl::ToDoubleSeconds(MonotonicNow() - start)});
  }
}

}  // namespace eplb
