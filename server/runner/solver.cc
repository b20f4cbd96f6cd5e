#include "server/runner/solver.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "placement/policies/registry.h"

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

absl::StatusOr<Placement> SolveRequest(const core::Solve& request,
                                       const std::atomic<bool>* abandoned) {
  if (request.load == nullptr || request.previous == nullptr) {
    return absl::InternalError("a request to solve has no load or no previous placement");
  }
  if (request.hierarchy == Hierarchy::kSoft && TraitsOf(request.policy_name).follows_reference) {
    return absl::InvalidArgumentError(
        absl::StrCat("policy ", request.policy_name, " does not take hierarchy soft"));
  }
  EPLB_ASSIGN_OR_RETURN(const std::unique_ptr<Policy> policy,
                        MakePolicy(request.policy_name, {.hierarchy = request.hierarchy}));
  std::vector<Load> recent;
  recent.reserve(request.recent.size());
  for (const std::shared_ptr<const Load>& window : request.recent) recent.push_back(*window);
  return SolveAligned(*policy, {.load = *request.load,
                                .topology = request.previous->topology(),
                                .previous = request.previous.get(),
                                .speeds = request.speeds.get(),
                                .split = request.split,
                                .recent = recent,
                                .abandoned = abandoned});
}

core::Solved Answer(const core::Solve& request, const std::atomic<bool>* abandoned) {
  core::Solved solved{.job = request.job,
                      .solve_id = request.solve_id,
                      .placement = absl::InternalError("a request has no previous placement")};
  if (request.choose == nullptr || request.previous == nullptr) {
    solved.placement = SolveRequest(request, abandoned);
    return solved;
  }
  absl::StatusOr<AutoOutcome> outcome = AskAuto(*request.choose, *request.previous, abandoned);
  if (!outcome.ok()) {
    solved.placement = outcome.status();
    return solved;
  }
  solved.placement = outcome->answer ? outcome->answer->placement : *request.previous;
  solved.chosen = std::make_shared<const AutoOutcome>(*std::move(outcome));
  return solved;
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
  return std::any_of(at_work_.begin(), at_work_.end(),
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
  core::Solved solved = Answer(request, &work.abandoned);
  if (work.abandoned) return;
  solved.seconds = absl::ToDoubleSeconds(MonotonicNow() - start);
  sinks_.done(std::move(solved));
}

}  // namespace eplb
