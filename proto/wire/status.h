// gRPC's codes are Abseil's numbers.
#ifndef EPLB_PROTO_WIRE_STATUS_H_
#define EPLB_PROTO_WIRE_STATUS_H_

#include "absl/status/status.h"
#include <grpcpp/support/status.h>

namespace eplb::wire {

inline grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

inline absl::Status FromGrpc(const grpc::Status& status) {
  return {static_cast<absl::StatusCode>(status.error_code()), status.error_message()};
}

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_STATUS_H_
