// `eplbctl wait`: until something is true of a job.
#ifndef EPLB_CLIENT_CLI_WAIT_H_
#define EPLB_CLIENT_CLI_WAIT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"

namespace eplb::v1 {
class JobStatus;
enum JobState : int;
}  // namespace eplb::v1

namespace eplb::cli {

// What `eplbctl wait --for` waits for.

class WaitCondition {
 public:
  enum class Answer {
    kMet,
    kNotYet,
    kNever,  // the run has ended in another way
  };

  // "connected" (every rank is), "finished", "ended" (finished or failed), "state=NAME",
  // "version>=N", "step>=N", "balanced>=X" (measured, X in 0..1).
  // errors: InvalidArgument naming --for.
  static absl::StatusOr<WaitCondition> Parse(const std::string& text);

  // A run that was lost may come back: it is not at its end. One that has ended makes kNever only
  // what asks how it ended: a new run of the job may meet everything else.
  Answer Ask(const v1::JobStatus& job) const;

  // As given.
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kConnected, kFinished, kEnded, kState, kVersion, kStep, kBalanced };

  bool IsMet(const v1::JobStatus& job) const;
  bool IsOfEndedRun() const;  // asks how a run has ended

  std::string text_;
  Kind kind_ = Kind::kConnected;
  v1::JobState state_ = {};
  uint64_t number_ = 0;
  double ratio_ = 0;
};

struct WaitOptions {
  QueryOptions query;     // its timeout is that of all questions together, at most a week
  std::string job;        // empty: the only one
  std::string condition;  // as `--for` of the help
};

// Asks until the condition is true, a daemon that goes away meanwhile as well as a job that has not
// come yet among it. Exit 0 when it is true; 8 when the run has ended without it; 7 after the
// timeout; 3 when no daemon answers the first question.
// JSON: {"job","condition","state","version","step","balancedness","seconds"}.
Output RunWait(const WaitOptions& options);

void AddWait(CLI::App& root, Command& command);

// Between two questions of a command that waits.
inline constexpr absl::Duration kAskAgain = absl::Milliseconds(250);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_WAIT_H_
