// Converts between protobuf messages and plain values. Only server/core/views.cc, what reads
// the configuration, server/rpc, client/session and the query stubs of client/cli include it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "proto/wire/messages.h"

#include "eplb/v1/session.pb.h"
#include "eplb/v1/types.pb.h"

namespace eplb::wire {

void ToProto(const TopologyOptions& shape, v1::Shape* out);
void ToProto(const Topology& shape, v1::Shape* out);
// Numbers only; Topology::Make checks what they mean.
absl::StatusOr<TopologyOptions> ShapeFromProto(const v1::Shape& shape);
// errors: InvalidArgument for a number that Topology::Make rejects.
absl::StatusOr<Topology> FromProto(const v1::Shape& shape);

void ToProto(const LayerPlacement& layer, v1::LayerPlacement* out);
LayerPlacement FromProto(const v1::LayerPlacement& layer);

void ToProto(const Placement& placement, int64_t version, v1::Placement* out);
// Checks shape, every layer present once, and that the digest is that of the maps.
// errors: InvalidArgument, naming the field.
absl::StatusOr<PlacementBody> FromProto(const v1::Placement& placement);

void ToProto(const TransportInfo& transport, v1::TransportInfo* out);
// Cuts texts and settings that are too long. errors: InvalidArgument for a device above 2^31-1.
absl::StatusOr<TransportInfo> FromProto(const v1::TransportInfo& transport);

// REQUIRES: the names are those of settings.
void ToProto(const SettingsPatch& patch, v1::PolicySettings* out);
// errors: InvalidArgument for a number that is not finite or above 2^31-1, naming the field. The
// daemon checks the ranges.
absl::StatusOr<SettingsPatch> FromProto(const v1::PolicySettings& settings);

void ToProto(const JobMemory& memory, v1::JobMemory* out);
// errors: InvalidArgument, naming the field.
absl::StatusOr<JobMemory> FromProto(const v1::JobMemory& memory);

// A memory without bytes and value has no bytes.
void ToProto(const CarriedMemory& memory, std::string* out);
// Bytes that are too many are dropped. Bytes that this version cannot read have no value.
CarriedMemory CarriedFromBytes(const std::string& bytes);

void ToProto(const LoadReport& report, v1::LoadReport* out);
// Takes the bytes of packed counts out of the message. Checks sizes before it allocates memory.
// errors: InvalidArgument, naming the field: steps that go backwards, counts of the wrong length or
// above 2^63-1, more than kMaxLoadParts parts, parts beside parts_unknown.
absl::StatusOr<LoadReport> FromProto(v1::LoadReport& in);

void ToProto(const UpMessage& message, v1::Up* out);
void ToProto(const DownMessage& message, v1::Down* out);
// Takes the bytes of packed counts out of the message, so pass it with std::move.
// errors: Unimplemented for a message of a kind that this version does not have, which the reader
// skips. InvalidArgument, naming the field: no message set, a digest that is not 32 bytes, a number
// above 2^63-1, counts of the wrong length, an unknown code, a job name with characters that are
// not allowed.
absl::StatusOr<UpMessage> FromProto(v1::Up message);
absl::StatusOr<DownMessage> FromProto(const v1::Down& message);

}  // namespace eplb::wire
