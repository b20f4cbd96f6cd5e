// An eplbd of the same build beside a bench. A process of its own: client and server are no parts
// of one program, and its threads shall not be the bench's.
#ifndef EPLB_TESTS_BENCH_CHILD_DAEMON_H_
#define EPLB_TESTS_BENCH_CHILD_DAEMON_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace eplb::bench {

class ChildDaemon {
 public:
  // The one in ../bin of this program's folder, on free ports of loopback, keeping nothing. Waits
  // until it listens, 20 s at most. errors: FailedPrecondition when it does not.
  static absl::StatusOr<std::unique_ptr<ChildDaemon>> Start();
  ~ChildDaemon();  // kills it; it also dies with this process
  ChildDaemon(const ChildDaemon&) = delete;
  ChildDaemon& operator=(const ChildDaemon&) = delete;

  const std::string& endpoint() const { return endpoint_; }

 private:
  explicit ChildDaemon(pid_t pid) : pid_(pid) {}

  pid_t pid_;
  std::string endpoint_;
};

}  // namespace eplb::bench

#endif  // EPLB_TESTS_BENCH_CHILD_DAEMON_H_
