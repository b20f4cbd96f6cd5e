// The start vote: every rank sends what must be equal as lines "field=value" and compares the lines
// of all ranks. If one differs, all ranks stop with the same message.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/client.h"
#include "client/rows/control/control_channel.h"
#include "client/session/member.h"

namespace eplb {

// Fields in the order in which they are compared. A value's line breaks and backslashes are escaped
// on the way.
using StartFields = std::vector<std::pair<std::string, std::string>>;

// One round. mine: what must be equal on all ranks, or on those of each pipeline stage. error: why
// this rank cannot start, or OK: every rank then stops, naming it. extra: what this rank tells
// beyond that, not compared.
// returns: the extras of all ranks, in rank order.
// errors: `error` on the rank that has it; FailedPrecondition elsewhere, naming the rank and its
// message, or the first differing field with ranks and both values; what the all-gather says.
struct StartRound {
  std::string what;  // "start" or "tensors", for messages
  StartFields mine = {};
  StartFields extra = {};
  absl::Status error = {};
  int32_t pipeline_parallel_size = 1;  // blocks of consecutive ranks; `mine` is compared in each
};
absl::StatusOr<std::vector<StartFields>> RunStartRound(const StartRound& round, int32_t rank,
                                                       int32_t world_size,
                                                       const AllGather& all_gather);

// Compares what `ranks` sent, which must be equal. sent: by all ranks of the job, in rank order.
// inside: place among the ranks, for messages. errors: FailedPrecondition beginning with `what`,
// for the first field that differs, with ranks and both values.
absl::Status CompareFields(const std::string& what, std::span<const RankId> ranks,
                           std::span<const StartFields> sent, const std::string& inside = "");

// Returns the fields that the options alone decide.
StartFields FieldsOf(const ClientOptions& options, bool disabled);

// The value of a field. errors: FailedPrecondition, naming the field.
absl::StatusOr<std::string> FindField(const StartFields& fields, std::string_view name);

// A placement's slots and replica ranks as bytes, [2, L, S] int32 little-endian, and back.
// errors: InvalidArgument for a wrong length, or as Placement::FromSlotsAndRanks.
std::string PlacementBytes(const Placement& placement);
absl::StatusOr<Placement> PlacementFromBytes(const Topology& topology, std::string_view bytes);

// Gives rank 0's bytes, of a size all ranks know, to all ranks, in all-gathers of
// kAllGatherPieceBytes. errors: FailedPrecondition when rank 0 sent another size.
inline constexpr size_t kAllGatherPieceBytes = 512 << 10;  // an all-gather takes at most 1 MiB
absl::StatusOr<std::string> BroadcastBytes(std::string_view bytes, size_t num_bytes, int32_t rank,
                                           const AllGather& all_gather);

}  // namespace eplb
