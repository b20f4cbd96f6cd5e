#include "client/rows/paths/nccl_abort.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"

#include "base/errors.h"
#include "cuda/runtime.h"

namespace eplb {
namespace {

constexpr std::chrono::seconds kExitPatience{1};

// Threads that are in ncclCommAbort. Never destroyed, since they may outlive everything.
struct Aborts {
  std::mutex mutex;
  std::condition_variable changed;
  int32_t num_running = 0;  // all guarded by mutex
  bool is_exiting = false;
  pid_t process = 0;  // process of these threads: a forked child has none

  static Aborts& Instance() {
    static auto& instance = *new Aborts();
    return instance;
  }
};

void AwaitAborts() {
  Aborts& aborts = Aborts::Instance();
  std::unique_lock<std::mutex> lock(aborts.mutex);
  if (aborts.process != getpid()) return;
  aborts.changed.wait_for(lock, kExitPatience, [&] { return aborts.num_running == 0; });
  aborts.is_exiting = true;
}

void Begin() {
  static const int registered = std::atexit(&AwaitAborts);
  (void)registered;
  Aborts& aborts = Aborts::Instance();
  const std::lock_guard<std::mutex> lock(aborts.mutex);
  if (aborts.process != getpid()) aborts.num_running = 0;
  aborts.process = getpid();
  ++aborts.num_running;
}

// Not after the process has begun to exit: then it never returns.
void End() {
  Aborts& aborts = Aborts::Instance();
  std::unique_lock<std::mutex> lock(aborts.mutex);
  while (aborts.is_exiting) aborts.changed.wait(lock);
  --aborts.num_running;
  aborts.changed.notify_all();
}

// State that the thread and its caller share.
struct Abort {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<absl::Status> result;
};

void Run(std::unique_ptr<cuda::NcclCommunicator> communicator, std::optional<int32_t> device,
         const std::shared_ptr<Abort>& abort) {
  std::optional<absl::StatusOr<cuda::DeviceGuard>> guard;
  // A thread begins with device 0.
  if (device.has_value()) guard.emplace(cuda::DeviceGuard::Make(*device));
  absl::Status result = communicator->Abort();
  communicator.reset();
  guard.reset();
  {
    const std::lock_guard<std::mutex> lock(abort->mutex);
    abort->result = std::move(result);
  }
  abort->changed.notify_all();
}

}  // namespace

absl::Status AbortWithin(std::unique_ptr<cuda::NcclCommunicator> communicator,
                         std::optional<int32_t> device, absl::Duration timeout) {
  auto abort = std::make_shared<Abort>();
  Begin();
  std::thread([communicator = std::move(communicator), device, abort]() mutable {
    Run(std::move(communicator), device, abort);
    abort.reset();
    End();
  }).detach();
  std::unique_lock<std::mutex> lock(abort->mutex);
  const bool ended = abort->changed.wait_for(lock, absl::ToChronoNanoseconds(timeout),
                                             [&] { return abort->result.has_value(); });
  if (ended) return *std::move(abort->result);
  return Internal("ncclCommAbort has not returned in ", absl::FormatDuration(timeout));
}

}  // namespace eplb
