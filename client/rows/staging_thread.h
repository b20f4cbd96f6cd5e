// The thread that stages a plan while the trainer runs its next steps.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "absl/status/statusor.h"

#include "client/rows/executor.h"

namespace eplb {

// Between Begin and the return of Join or Stop the executor is the thread's, but for what it allows
// any. Threads: one caller. It sleeps while there is nothing to stage.
class StagingThread {
 public:
  // The executor outlives it.
  explicit StagingThread(Executor& executor);
  ~StagingThread();
  StagingThread(const StagingThread&) = delete;
  StagingThread& operator=(const StagingThread&) = delete;

  // FinishStage runs from now on. REQUIRES: BeginStage returned OK; nothing is under way.
  void Begin();
  // Waits for FinishStage, which has deadlines of its own, and returns its result. REQUIRES: Begin
  // was called, and nothing was joined since.
  absl::StatusOr<Executor::Staged> Join();
  // Interrupts FinishStage, waits for it and returns its result. REQUIRES: see Join.
  absl::StatusOr<Executor::Staged> Stop();

 private:
  enum class Phase { kIdle, kWanted, kDone, kEnding };

  void Run();

  Executor& executor_;
  // std::mutex: ThreadSanitizer does not see what the packaged Abseil's mutex orders.
  std::mutex mutex_;  // guards phase_ and result_
  std::condition_variable changed_;
  Phase phase_ = Phase::kIdle;
  std::optional<absl::StatusOr<Executor::Staged>> result_;  // result in kDone
  std::thread thread_;
};

}  // namespace eplb
