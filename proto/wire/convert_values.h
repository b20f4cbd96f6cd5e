// Checked reads of single protobuf fields; each error names the field. Used only by the conversions
// beside it.
#ifndef EPLB_PROTO_WIRE_CONVERT_VALUES_H_
#define EPLB_PROTO_WIRE_CONVERT_VALUES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include <google/protobuf/message.h>

#include "placement/digest.h"
#include "placement/topology.h"
#include "proto/wire/messages.h"

#include "eplb/v1/types.pb.h"

namespace eplb::wire {

// One visitor per alternative of a variant.
template <class... Visitors>
struct Overloaded : Visitors... {
  using Visitors::operator()...;
};
template <class... Visitors>
Overloaded(Visitors...) -> Overloaded<Visitors...>;

void SetDigest(const Digest& digest, std::string* out);
// errors: InvalidArgument unless `bytes` are 32.
absl::StatusOr<Digest> GetDigest(const char* field, std::string_view bytes);
// errors: InvalidArgument above 2^63-1.
absl::StatusOr<int64_t> GetCount(const char* field, uint64_t value);
// errors: InvalidArgument above 2^31-1.
absl::StatusOr<int32_t> GetSmall(const char* field, uint32_t value);
// Bytes that are too many, or say nothing to this version, are no memory of the daemon's.
void ToProto(const CarriedMemory& memory, std::string* out);
CarriedMemory CarriedFromBytes(const std::string& bytes);
// What a message of the stream is in which no kind that we know is set. Unimplemented, naming the
// field's number, for a kind of a later version: the reader skips it. InvalidArgument for an empty
// message.
absl::Status NoKnownKind(const google::protobuf::Message& message);
// Numbers only; Topology::Make checks what they mean.
absl::StatusOr<TopologyOptions> ShapeFromProto(const v1::Shape& shape);

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_CONVERT_VALUES_H_
