// Session messages as bytes: parsed from one stream, made once for many.
#pragma once

#include <mutex>
#include <optional>

#include <grpcpp/support/byte_buffer.h>

#include "proto/wire/messages.h"

#include "eplb/v1/session.pb.h"

namespace eplb {

// Returns false if the bytes are no message.
bool ParseBytes(const grpc::ByteBuffer& bytes, v1::Up* message);

// Threads: safe. Memory: the bytes of the newest proposal.
class MessageBytes {
 public:
  // Returns the bytes of a message. All ranks of a job get the same proposal, so its bytes are made
  // once and shared by all streams. Copies of a proposal are recognised by the layers that they
  // share.
  grpc::ByteBuffer Of(const wire::DownMessage& message);

 private:
  struct Kept {
    wire::Propose propose;
    grpc::ByteBuffer bytes;
  };

  std::mutex mutex_;  // guards what follows
  std::optional<Kept> newest_;
};

}  // namespace eplb
