// The JSON form of a placement, "eplb.placement.v1": files, placements.jsonl and the daemon's HTTP
// API share it.
#ifndef EPLB_PROTO_WIRE_PLACEMENT_JSON_H_
#define EPLB_PROTO_WIRE_PLACEMENT_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "placement/placement.h"

namespace eplb::wire {

struct JsonValue;

// One line, no newline; keys in the order of the format's description.
std::string PlacementToJson(const Placement& placement);

// Accepts exactly what PlacementToJson writes, in any layout and key order; unknown keys are
// ignored. The three maps must agree. errors: InvalidArgument, naming key and place: not JSON, a
// key missing or given twice, a ragged or wrongly typed row, an id out of range, maps that
// contradict each other, padding that is not -1 at the tail.
absl::StatusOr<Placement> PlacementFromJson(std::string_view text);
// As above for a value that is read already, e.g. a member of a line of placements.jsonl.
absl::StatusOr<Placement> PlacementFromJson(const JsonValue& object);

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_PLACEMENT_JSON_H_
