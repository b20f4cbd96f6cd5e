#include "proto/wire/fields.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include <google/protobuf/unknown_field_set.h>

#include "placement/status_macros.h"

namespace eplb::wire {

void SetDigest(const Digest& digest, std::string* out) {
  out->assign(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

absl::StatusOr<Digest> GetDigest(const char* field, std::string_view bytes) {
  Digest digest;
  if (bytes.size() != digest.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", bytes.size(), " bytes, expected 32"));
  }
  std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
  return digest;
}

absl::StatusOr<int64_t> GetCount(const char* field, uint64_t value) {
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", above 2^63-1"));
  }
  return static_cast<int64_t>(value);
}

absl::StatusOr<int32_t> GetSmall(const char* field, uint32_t value) {
  if (value > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", above 2^31-1"));
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<TopologyOptions> ShapeFromProto(const v1::Shape& shape) {
  TopologyOptions options;
  EPLB_ASSIGN_OR_RETURN(options.num_layers, GetSmall("shape.num_layers", shape.num_layers()));
  EPLB_ASSIGN_OR_RETURN(options.num_experts, GetSmall("shape.num_experts", shape.num_experts()));
  EPLB_ASSIGN_OR_RETURN(options.num_slots, GetSmall("shape.num_slots", shape.num_slots()));
  EPLB_ASSIGN_OR_RETURN(options.num_gpus, GetSmall("shape.num_gpus", shape.num_gpus()));
  EPLB_ASSIGN_OR_RETURN(options.num_nodes, GetSmall("shape.num_nodes", shape.num_nodes()));
  EPLB_ASSIGN_OR_RETURN(options.num_groups, GetSmall("shape.num_groups", shape.num_groups()));
  return options;
}

absl::Status NoKnownKind(const google::protobuf::Message& message) {
  const google::protobuf::UnknownFieldSet& unknown =
      message.GetReflection()->GetUnknownFields(message);
  if (unknown.empty()) return absl::InvalidArgumentError("the stream message is empty");
  return absl::UnimplementedError(absl::StrCat("the stream message is of the unknown kind ",
                                               unknown.field(0).number(), ", of a later version"));
}

}  // namespace eplb::wire
