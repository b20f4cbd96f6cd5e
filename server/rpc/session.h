// Balancer.Session: one bidirectional stream per rank.
#ifndef EPLB_SERVER_RPC_SESSION_H_
#define EPLB_SERVER_RPC_SESSION_H_

#include <cstdint>

#include "server/runner/runner.h"

#include "eplb/v1/session.grpc.pb.h"

namespace eplb {

// Parses what the rank says and hands it to the runner; sends what the runner puts into the
// mailbox, one write at a time. Nothing in it blocks. The reactor deletes itself when the stream is
// over. runner: outlives the stream.
grpc::ServerBidiReactor<v1::Up, v1::Down>* StartSession(grpc::CallbackServerContext* context,
                                                        Runner* runner,
                                                        int32_t messages_per_second);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_SESSION_H_
