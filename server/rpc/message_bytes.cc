// The newest proposal is kept with its bytes.
#include "server/rpc/message_bytes.h"

#include <variant>

#include <grpcpp/support/proto_buffer_reader.h>

#include "proto/wire/convert.h"

namespace eplb {

namespace {

grpc::ByteBuffer Serialise(const wire::DownMessage& message) {
  v1::Down down;
  wire::ToProto(message, &down);
  grpc::Slice slice(down.ByteSizeLong());
  // A slice that was just made has one owner, so its bytes may be written.
  down.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return grpc::ByteBuffer(&slice, 1);
}

bool IsCopy(const wire::Propose& a, const wire::Propose& b) {
  return a.layers.SharesWith(b.layers) && a.term == b.term && a.version == b.version;
}

}  // namespace

bool ParseBytes(const grpc::ByteBuffer& bytes, v1::Up* message) {
  grpc::ByteBuffer shared = bytes;  // the reader wants to change it
  grpc::ProtoBufferReader reader(&shared);
  return message->ParseFromZeroCopyStream(&reader) && reader.status().ok();
}

grpc::ByteBuffer MessageBytes::Of(const wire::DownMessage& message) {
  const auto* propose = std::get_if<wire::Propose>(&message);
  if (propose == nullptr) return Serialise(message);
  const std::lock_guard lock(mutex_);
  if (!newest_ || !IsCopy(newest_->propose, *propose)) newest_ = {*propose, Serialise(message)};
  return newest_->bytes;
}

}  // namespace eplb
