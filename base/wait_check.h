// A check that a thread makes while one of its calls waits, such as for signals of the caller's
// language.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace eplb {

// Longest time between two checks of a thread that waits.
inline constexpr absl::Duration kBetweenWaitChecks = absl::Milliseconds(200);

// Runs `check` in the waits of the constructing thread while the object lives. Once `check` has
// failed it is not run again, and every later wait fails with its error.
class WaitCheck {
 public:
  explicit WaitCheck(std::function<absl::Status()> check);
  ~WaitCheck();
  WaitCheck(const WaitCheck&) = delete;
  WaitCheck& operator=(const WaitCheck&) = delete;

 private:
  friend absl::Status CheckWait(bool now);
  absl::Status Run(bool now);

  const std::function<absl::Status()> check_;
  WaitCheck* const outer_;  // enclosing check of the same thread
  absl::Time last_;
  absl::Status failure_;
};

// Called by everything that waits, at least every kBetweenWaitChecks. Runs the thread's check if
// that time has passed, or with `now`. Returns the error of a check that failed; OK without one.
absl::Status CheckWait(bool now = false);

}  // namespace eplb
