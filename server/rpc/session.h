// Balancer.Session: one bidirectional stream per rank.
#ifndef EPLB_SERVER_RPC_SESSION_H_
#define EPLB_SERVER_RPC_SESSION_H_

#include <cstdint>

#include "server/rpc/gate.h"
#include "server/runner/runner.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

struct SessionOptions {
  Runner* runner = nullptr;  // both outlive the stream
  Gate* gate = nullptr;
  int32_t messages_per_second = 100;
};

// Parses what the rank says and hands it to the runner; sends what the runner puts into the
// mailbox, one write at a time. Nothing in it blocks. The job is known, and allowed or not, at the
// Hello. The reactor deletes itself when the stream is over.
grpc::ServerBidiReactor<v1::Up, v1::Down>* StartSession(grpc::CallbackServerContext* context,
                                                        const SessionOptions& options);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_SESSION_H_
