#include "server/runner/solver.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/monotonic_clock.h"
#include "server/core/solution.h"

namespace eplb {

namespace {

constexpr double kForgotten = 1e-6;  // seconds

}  // namespace

double FairShare::SecondsOf(const Share& share, absl::Time now) {
  return share.seconds * std::exp2(-absl::FDivDuration(now - share.at, kHalfLife));
}

void FairShare::Spend(const std::string& job, absl::Duration used, absl::Time now) {
  std::erase_if(shares_,
                [now](const auto& entry) { return SecondsOf(entry.second, now) < kForgotten; });
  shares_[job] = {.seconds = Used(job, now) + absl::ToDoubleSeconds(used), .at = now};
}

double FairShare::Used(const std::string& job, absl::Time now) const {
  const auto found = shares_.find(job);
  return found == shares_.end() ? 0 : SecondsOf(found->second, now);
}

Solver::Solver(Sinks sinks, int32_t num_threads) : sinks_(std::move(sinks)) {
  for (int32_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

Solver::~Solver() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Work& work : at_work_) work.abandoned = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
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

void Solver::Cancel(const core::CancelSolve& which) {
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&which](const core::Solve& one) {
    return one.job == which.job && one.solve_id == which.solve_id;
  });
  for (Work& work : at_work_) {
    const core::Solve& one = work.request;
    if (one.job == which.job && one.solve_id == which.solve_id) work.abandoned = true;
  }
}

bool Solver::IsAtWork(const std::string& job) const {
  return std::ranges::any_of(at_work_,
                             [&job](const Work& work) { return work.request.job == job; });
}

std::deque<core::Solve>::iterator Solver::Next() {
  const absl::Time now = MonotonicNow();
  auto next = waiting_.end();
  double least = 0;
  for (auto one = waiting_.begin(); one != waiting_.end(); ++one) {
    if (IsAtWork(one->job)) continue;
    const double used = used_.Used(one->job, now);
    if (next != waiting_.end() && used >= least) continue;
    next = one;
    least = used;
  }
  return next;
}

void Solver::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto next = waiting_.end();
    changed_.wait(lock, [this, &next] {
      next = Next();
      return stopping_ || next != waiting_.end();
    });
    if (stopping_) return;
    const auto work = at_work_.emplace(at_work_.end(), std::move(*next));
    waiting_.erase(next);
    const absl::Time start = MonotonicNow();
    lock.unlock();
    Compute(*work);
    lock.lock();
    const absl::Time end = MonotonicNow();
    used_.Spend(work->request.job, end - start, end);
    at_work_.erase(work);
    changed_.notify_all();  // another request of this job may begin now
  }
}

void Solver::Compute(const Work& work) {
  const core::Solve& request = work.request;
  sinks_.started({.job = request.job, .solve_id = request.solve_id});
  const absl::Time start = MonotonicNow();
  core::Solved solved = core::AnswerSolve(request, &work.abandoned);
  if (work.abandoned) return;
  solved.began_at = start;
  solved.seconds = absl::ToDoubleSeconds(MonotonicNow() - start);
  sinks_.done(std::move(solved));
}

}  // namespace eplb
