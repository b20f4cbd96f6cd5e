// The JSON form of a placement, "eplb.placement.v1", which files, placements.jsonl and the daemon's
// HTTP API share.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "placement/ids.h"
#include "placement/load.h"
#include "placement/placement.h"

#include <nlohmann/json_fwd.hpp>

namespace eplb::wire {

struct JsonValue;

// A placement and, if the writer gave them, the shares of an expert's tokens among its replicas.
struct PlacementWithShares {
  Placement placement;
  // [L, S], the fraction of its expert's tokens that a slot takes [0, 1]; 0 in a slot without an
  // expert. The shares of an expert sum to 1 within kShareTolerance.
  std::optional<RealMatrix> replica_share;
};

// Returns one line without a newline; keys are in the order of the format's description.
// replica_share: [L, S] and finite, or null; each number is read back bit for bit.
// REQUIRES: replica_share has the placement's shape.
std::string PlacementToJson(const Placement& placement, const RealMatrix* replica_share = nullptr);

// Returns one layer for pictures: "layer", "num_gpus", "num_nodes"; by slot "experts" (-1: none)
// and "gpus"; by expert "primaries", the slot that keeps its optimizer state. REQUIRES: layer is in
// range.
nlohmann::ordered_json LayerToJson(const Placement& placement, LayerId layer);

// Reads the output of PlacementToJson in any layout and key order; unknown keys are ignored. The
// three maps must agree. errors: InvalidArgument, naming key and place: not JSON, a key missing or
// given twice, a ragged or wrongly typed row, an id out of range, maps that contradict each other,
// padding that is not -1 at the tail, shares that are out of range.
absl::StatusOr<PlacementWithShares> PlacementWithSharesFromJson(std::string_view text);
// Overload for a value that is already parsed, e.g. a member of a line of placements.jsonl.
absl::StatusOr<PlacementWithShares> PlacementWithSharesFromJson(const JsonValue& object);

// Reads the placement alone; shares are checked and dropped.
absl::StatusOr<Placement> PlacementFromJson(std::string_view text);
absl::StatusOr<Placement> PlacementFromJson(const JsonValue& object);

}  // namespace eplb::wire
