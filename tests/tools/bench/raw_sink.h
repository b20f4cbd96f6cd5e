// The baseline: a gRPC server that throws away what it reads.
#pragma once

namespace eplb::bench {

// Takes streams of any method on a free port of loopback, reads their messages as bytes, parses
// nothing, and ends each stream once the client half-closed it. Prints the line that eplbd prints,
// then serves until SIGTERM. returns: the exit code.
int RunRawSink();

}  // namespace eplb::bench
