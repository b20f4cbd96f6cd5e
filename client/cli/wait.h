// `eplbctl wait`: waits until a condition of a job is true.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::v1 {
class JobStatus;
}

namespace eplb::cli {

// The condition of `eplbctl wait --for`.
struct WaitCondition {
  enum class Answer {
    kMet,
    kNotYet,
    kNever,  // the run has ended in another way
  };

  // "connected" (every rank is), "finished", "ended" (finished or failed), "state=NAME",
  // "version>=N", "step>=N", "balanced>=X" (measured, X in 0..1).
  // errors: InvalidArgument naming --for.
  static absl::StatusOr<WaitCondition> Parse(const std::string& text);

  // A run that was lost may come back, so it has not ended. The end of a run answers kNever only to
  // conditions about that end, because a new run of the job may meet every other condition.
  Answer Ask(const v1::JobStatus& job) const;

  std::function<bool(const v1::JobStatus& job)> is_met;
  bool of_ended_run = false;  // asks how a run has ended
};

struct WaitOptions {
  QueryOptions query;     // the timeout covers all questions together; at most a week
  std::string job;        // empty: the only one
  std::string condition;  // WaitCondition::Parse
};

// Asks until the condition is true. A job that does not exist yet and a daemon that stops answering
// do not end the wait. Exit 0 if the condition is true; 8 if the run has ended without it; 7 after
// the timeout; 3 if no daemon answers the first question.
// JSON: {"job","condition","state","version","step","balancedness","seconds"}.
Output RunWait(const WaitOptions& options);

// Time between two questions of a command that waits.
inline constexpr absl::Duration kAskAgain = absl::Milliseconds(250);

}  // namespace eplb::cli
