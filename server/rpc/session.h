// One rank's stream.
#ifndef EPLB_SERVER_RPC_SESSION_H_
#define EPLB_SERVER_RPC_SESSION_H_

#include <cstdint>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/message_bytes.h"
#include "server/runner/runner.h"

namespace eplb {

// v1::Up and v1::Down as bytes: the generated code would parse before we can tell a half-close from
// bytes that are no message, and would serialise a proposal once per rank.
using SessionStream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// What every stream uses; all of it outlives them.
struct SessionServices {
  Runner* runner = nullptr;
  MessageBytes* bytes = nullptr;
  int32_t messages_per_second = 0;  // that one stream may send on average
};

// Serves one Session stream: reads messages into the core, writes what is in its mailbox. Never
// blocks and never decides anything. The reactor deletes itself at the end of the stream.
SessionStream* StartSession(grpc::CallbackServerContext* context, const SessionServices& services);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_SESSION_H_
