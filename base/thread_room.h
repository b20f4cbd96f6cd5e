// Checks that this process may start the threads that it is about to need.
#pragma once

#include "absl/status/status.h"

namespace eplb {

// Starts `count` threads at once and ends them. A limit of threads is found here, where it can be
// reported: gRPC ends the process, or waits for ever, when it cannot start one. errors:
// ResourceExhausted, naming how many were started and the limits. cost: some 20 us a thread.
absl::Status CheckThreadRoom(int count);

}  // namespace eplb
