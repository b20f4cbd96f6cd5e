// One rank's stream: it moves messages and decides nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "server/rpc/gate.h"
#include "server/rpc/message_bytes.h"
#include "server/runner/runner.h"

namespace eplb {

// How streams ended, counted on gRPC's threads.
struct StreamEndCounters {
  std::atomic<int64_t> goodbye = 0;
  std::atomic<int64_t> closed = 0;  // by the daemon: refused, drained, or told to end
  std::atomic<int64_t> lost = 0;    // by the peer or the network, without Goodbye
};

// v1::Up and v1::Down as bytes: the generated code would parse before we can tell a half-close from
// bytes that are no message, and would serialise a proposal once per rank.
using SessionStream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// Services that every stream uses. They outlive the streams.
struct SessionServices {
  Runner* runner = nullptr;
  Gate* gate = nullptr;
  StreamEndCounters* ends = nullptr;
  MessageBytes* bytes = nullptr;
  int32_t messages_per_second = 100;  // messages that one stream may send on average
};

// Parses what the rank says and hands it to the runner; sends what the runner puts into the
// mailbox, one write at a time. Nothing in it blocks or decides. The job is known, and allowed or
// not, at the Hello. The reactor deletes itself when the stream is over.
SessionStream* StartSession(grpc::CallbackServerContext* context, const SessionServices& services);

}  // namespace eplb
