#include "client/rows/staging_thread.h"

#include <utility>

#include "base/wait_check.h"

namespace eplb {

StagingThread::StagingThread(Executor& executor)
    : executor_(executor), thread_([this] { Run(); }) {}

StagingThread::~StagingThread() {
  executor_.Interrupt();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    phase_ = Phase::kEnding;
  }
  changed_.notify_all();
  thread_.join();
  executor_.Resume();
}

void StagingThread::Begin() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    phase_ = Phase::kWanted;
  }
  changed_.notify_all();
}

absl::StatusOr<Executor::Staged> StagingThread::Join() {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto between = absl::ToChronoMilliseconds(kBetweenWaitChecks);
  while (!changed_.wait_for(lock, between, [this] { return phase_ == Phase::kDone; })) {
    lock.unlock();
    (void)CheckWait();  // a failed one ends the next vote
    lock.lock();
  }
  phase_ = Phase::kIdle;
  return *std::exchange(result_, std::nullopt);
}

absl::StatusOr<Executor::Staged> StagingThread::Stop() {
  executor_.Interrupt();
  absl::StatusOr<Executor::Staged> result = Join();
  executor_.Resume();
  return result;
}

void StagingThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return phase_ == Phase::kWanted || phase_ == Phase::kEnding; });
    if (phase_ == Phase::kEnding) return;
    lock.unlock();
    absl::StatusOr<Executor::Staged> result = executor_.FinishStage();
    lock.lock();
    if (phase_ == Phase::kEnding) return;
    result_ = std::move(result);
    phase_ = Phase::kDone;
    changed_.notify_all();
  }
}

}  // namespace eplb
