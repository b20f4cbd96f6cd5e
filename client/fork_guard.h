// What a process has to know about having been forked: threads do not live on in a child, and its
// parent's connections must not be used by two processes.
#ifndef EPLB_CLIENT_FORK_GUARD_H_
#define EPLB_CLIENT_FORK_GUARD_H_

#include <cstdint>

#include "absl/status/status.h"

namespace eplb {

// Remembers the process that it was made in. Threads: safe.
class ForkGuard {
 public:
  ForkGuard();
  // In a process that was forked since. The process says so on stderr, once.
  bool InForkedChild() const;
  // The same, in silence.
  bool InForkedChildQuietly() const;

 private:
  const int64_t forks_;  // of this process and its ancestors, at that time
};

// To be called before each thing that makes gRPC begin. errors: FailedPrecondition in a child whose
// parent had called it: gRPC's threads and locks are not whole there. Threads: safe.
absl::Status EnterGrpc();

}  // namespace eplb

#endif  // EPLB_CLIENT_FORK_GUARD_H_
