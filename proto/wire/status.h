// gRPC's codes are Abseil's numbers. A message travels in the trailers, whose size is limited: a
// longer one would arrive as another error.
#ifndef EPLB_PROTO_WIRE_STATUS_H_
#define EPLB_PROTO_WIRE_STATUS_H_

#include "absl/status/status.h"
#include <grpcpp/support/status.h>

#include "base/text.h"

namespace eplb::wire {

inline constexpr size_t kMaxStatusMessage = 1024;  // bytes

inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()),
          Clipped({status.message().data(), status.message().size()}, kMaxStatusMessage)};
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_STATUS_H_
