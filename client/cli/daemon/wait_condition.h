// What `eplbctl wait --for` waits for.
#ifndef EPLB_CLIENT_CLI_DAEMON_WAIT_CONDITION_H_
#define EPLB_CLIENT_CLI_DAEMON_WAIT_CONDITION_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace eplb::v1 {
class JobStatus;
}  // namespace eplb::v1

namespace eplb::cli {

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
  // what asks how it ended: a new launch of the job may meet everything else.
  Answer Ask(const v1::JobStatus& job) const;

  // As given.
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kConnected, kFinished, kEnded, kState, kVersion, kStep, kBalanced };

  bool IsMet(const v1::JobStatus& job) const;
  bool IsOfEndedRun() const;  // asks how a run has ended

  std::string text_;
  Kind kind_ = Kind::kConnected;
  std::string state_;
  uint64_t number_ = 0;
  double ratio_ = 0;
};

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_WAIT_CONDITION_H_
