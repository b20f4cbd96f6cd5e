// Balancer.Session: one bidirectional stream per rank.
#ifndef EPLB_SERVER_RPC_SESSION_H_
#define EPLB_SERVER_RPC_SESSION_H_

#include <atomic>
#include <cstdint>

#include "server/rpc/gate.h"
#include "server/runner/runner.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

// How streams ended, counted on gRPC's threads.
struct StreamEndCounters {
  std::atomic<int64_t> goodbye = 0;
  std::atomic<int64_t> closed = 0;  // by the daemon: refused, drained, or told to end
  std::atomic<int64_t> lost = 0;    // by the peer or the network, without Goodbye
};

struct StreamOptions {
  Runner* runner = nullptr;  // all three outlive the stream
  Gate* gate = nullptr;
  StreamEndCounters* ends = nullptr;
  int32_t messages_per_second = 100;
};

// Parses what the rank says and hands it to the runner; sends what the runner puts into the
// mailbox, one write at a time. Nothing in it blocks. The job is known, and allowed or not, at the
// Hello. The reactor deletes itself when the stream is over.
grpc::ServerBidiReactor<v1::Up, v1::Down>* StartSession(grpc::CallbackServerContext* context,
                                                        const StreamOptions& options);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_SESSION_H_
