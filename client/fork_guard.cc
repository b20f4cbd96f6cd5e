#include "client/fork_guard.h"

#include <pthread.h>

#include <atomic>

#include "client/session/log_line.h"

namespace eplb {
namespace {

std::atomic<int64_t> num_forks = 0;
std::atomic<bool> said_so = false;
constexpr int64_t kNever = -1;
std::atomic<int64_t> grpc_began_at = kNever;  // a number of forks

// How often this process's ancestors and itself were forked.
int64_t NumForks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] {
    ++num_forks;
    said_so = false;
  });
  (void)registered;  // fails without memory only; then a child is as unsafe as without us
  return num_forks;
}

}  // namespace

ForkGuard::ForkGuard() : forks_(NumForks()) {}

bool ForkGuard::InForkedChildQuietly() const { return forks_ != NumForks(); }

bool ForkGuard::InForkedChild() const {
  if (!InForkedChildQuietly()) return false;
  if (!said_so.exchange(true)) {
    LogLine(
        "this process was forked from a rank of a job: calls on the client that it was forked with "
        "do nothing here; the parent process is not affected");
  }
  return true;
}

absl::Status EnterGrpc() {
  const int64_t here = NumForks();
  int64_t began = kNever;
  if (grpc_began_at.compare_exchange_strong(began, here) || began == here) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from one that had spoken to a daemon: gRPC does not live on in the "
      "child; start ranks by exec (spawn or forkserver), or fork before the first client connects");
}

}  // namespace eplb
