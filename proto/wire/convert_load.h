// Load reports between protobuf and plain values; convert.cc calls it.
#ifndef EPLB_PROTO_WIRE_CONVERT_LOAD_H_
#define EPLB_PROTO_WIRE_CONVERT_LOAD_H_

#include "absl/status/statusor.h"

#include "proto/wire/messages.h"

#include "eplb/v1/session.pb.h"

namespace eplb::wire {

void LoadReportToProto(const LoadReport& report, v1::LoadReport* out);

// Takes the bytes of packed counts out of the message. Checks sizes before it allocates memory.
// errors: InvalidArgument, naming the field: steps that go backwards, counts of the wrong length or
// above 2^63-1, more than kMaxLoadParts parts, parts beside parts_unknown.
absl::StatusOr<LoadReport> LoadReportFromProto(v1::LoadReport& in);

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_CONVERT_LOAD_H_
