// The JSON form of a placement, "eplb.placement.v1": files, placements.jsonl and the daemon's HTTP
// API share it.
#ifndef EPLB_PROTO_WIRE_PLACEMENT_JSON_H_
#define EPLB_PROTO_WIRE_PLACEMENT_JSON_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/placement.h"

namespace eplb::wire {

struct JsonValue;

// How far from 1 the shares of an expert may sum: other writers round to a few digits.
inline constexpr double kShareTolerance = 1e-6;

// A placement and, where the writer gave them, the shares of an expert's tokens among its replicas.
struct PlacementWithShares {
  Placement placement;
  // [L, S], the fraction of its expert's tokens that a slot takes: 0..1, an expert's sum to 1
  // within kShareTolerance, 0 in a slot without an expert.
  std::optional<RealMatrix> replica_share;
};

// One line, no newline; keys in the order of the format's description. replica_share: [L, S] and
// finite, or null; each number is written so that it is read back bit for bit.
// REQUIRES: replica_share has the placement's shape.
std::string PlacementToJson(const Placement& placement, const RealMatrix* replica_share = nullptr);

// Accepts exactly what PlacementToJson writes, in any layout and key order; unknown keys are
// ignored. The three maps must agree. errors: InvalidArgument, naming key and place: not JSON, a
// key missing or given twice, a ragged or wrongly typed row, an id out of range, maps that
// contradict each other, padding that is not -1 at the tail, shares that are not as above.
absl::StatusOr<PlacementWithShares> PlacementWithSharesFromJson(std::string_view text);
// As above for a value that is read already, e.g. a member of a line of placements.jsonl.
absl::StatusOr<PlacementWithShares> PlacementWithSharesFromJson(const JsonValue& object);

// The placement alone; shares are checked and dropped.
absl::StatusOr<Placement> PlacementFromJson(std::string_view text);
absl::StatusOr<Placement> PlacementFromJson(const JsonValue& object);

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_PLACEMENT_JSON_H_
