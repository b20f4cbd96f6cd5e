// gRPC's own log as lines of ours, and what only that log tells.
#pragma once

#include <cstdint>

namespace eplb {

// gRPC's lines become lines of ours at level debug. Handshakes that fail have no other sign: they
// become warnings, at most 10 a second, and are counted. A connection whose bytes are no HTTP/2 is
// closed by gRPC without a word. Of the process; call once, before the server starts.
void RouteGrpcLog();

// Until a server listens, gRPC's errors are in the status that its start returns; afterwards they
// are warnings.
void GrpcErrorsAreWarnings();

// Since RouteGrpcLog. threads: safe.
int64_t FailedHandshakes();

}  // namespace eplb
