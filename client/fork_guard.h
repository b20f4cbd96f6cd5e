// Detects a fork, because threads do not survive in a child and two processes must not use the
// parent's connections.
#pragma once

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
  const int64_t forks_;  // forks of this process and its ancestors at construction
};

// To be called before each thing that makes gRPC begin. errors: FailedPrecondition in a child whose
// parent had called it: gRPC's threads and locks are not whole there. Threads: safe.
absl::Status EnterGrpc();

}  // namespace eplb
