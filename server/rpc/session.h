// One rank's stream.
#ifndef EPLB_SERVER_RPC_SESSION_H_
#define EPLB_SERVER_RPC_SESSION_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include "proto/wire/messages.h"
#include "server/rpc/gate.h"
#include "server/runner/runner.h"

#include "eplb/v1/session.pb.h"

namespace eplb {

// Session messages as bytes: what one stream reads and what many streams write.

// False when the bytes are no message.
bool ParseBytes(const grpc::ByteBuffer& bytes, v1::Up* message);

// Threads: safe. Memory: the bytes of the newest proposal.
class MessageBytes {
 public:
  // A proposal goes to every rank of a job: its bytes are made once and shared by all streams. The
  // copies of a proposal are known by the layers that they share.
  grpc::ByteBuffer Of(const wire::DownMessage& message);

 private:
  struct Kept {
    wire::Propose propose;
    grpc::ByteBuffer bytes;
  };

  std::mutex mutex_;  // guards what follows
  std::optional<Kept> newest_;
};

// How streams ended, counted on gRPC's threads.
struct StreamEndCounters {
  std::atomic<int64_t> goodbye = 0;
  std::atomic<int64_t> closed = 0;  // by the daemon: refused, drained, or told to end
  std::atomic<int64_t> lost = 0;    // by the peer or the network, without Goodbye
};

// v1::Up and v1::Down as bytes: the generated code would parse before we can tell a half-close from
// bytes that are no message, and would serialise a proposal once per rank.
using SessionStream = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// What every stream uses; all of it outlives them.
struct SessionServices {
  Runner* runner = nullptr;
  Gate* gate = nullptr;
  StreamEndCounters* ends = nullptr;
  MessageBytes* bytes = nullptr;
  int32_t messages_per_second = 100;  // that one stream may send on average
};

// Parses what the rank says and hands it to the runner; sends what the runner puts into the
// mailbox, one write at a time. Nothing in it blocks or decides. The job is known, and allowed or
// not, at the Hello. The reactor deletes itself when the stream is over.
SessionStream* StartSession(grpc::CallbackServerContext* context, const SessionServices& services);

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_SESSION_H_
