// The check of each thread that waits.
#include "base/wait_check.h"

#include <utility>

#include "base/monotonic_clock.h"

namespace eplb {
namespace {

thread_local WaitCheck* current_check = nullptr;

}  // namespace

WaitCheck::WaitCheck(std::function<absl::Status()> check)
    : check_(std::move(check)), outer_(std::exchange(current_check, this)), last_(MonotonicNow()) {}

WaitCheck::~WaitCheck() { current_check = outer_; }

absl::Status WaitCheck::Run(bool now) {
  if (!failure_.ok()) return failure_;
  if (!now && MonotonicNow() < last_ + kBetweenWaitChecks) return absl::OkStatus();
  failure_ = check_();
  last_ = MonotonicNow();
  return failure_;
}

absl::Status CheckWait(bool now) {
  return current_check == nullptr ? absl::OkStatus() : current_check->Run(now);
}

}  // namespace eplb
