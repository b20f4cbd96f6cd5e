// The JSON form of a placement, "eplb.placement.v1": files, placements.jsonl and the daemon's HTTP
// API share it.
#ifndef EPLB_PROTO_WIRE_PLACEMENT_JSON_H_
#define EPLB_PROTO_WIRE_PLACEMENT_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/digest.h"
#include "placement/ids.h"
#include "placement/load.h"
#include "placement/placement.h"

#include <nlohmann/json_fwd.hpp>

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

// One layer as pictures show it: "layer", "num_gpus", "num_nodes", and by slot "experts" (-1: none)
// and "gpus", by expert "primaries", the slot that keeps its optimizer state.
// REQUIRES: layer is in range.
nlohmann::ordered_json LayerToJson(const Placement& placement, LayerId layer);

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

namespace eplb {

// Placement files, and the placements.jsonl that a run writes.
// threads: safe, no state.

// One line of placements.jsonl: {"step":S,"version":V,"digest":"hex","decided_first_step":A,
// "decided_last_step":B,"decision":N,"policy":"..","asked_by":"..","reason":"..",
// "placement":{eplb.placement.v1}}. The six keys about the decision are optional when reading.
struct LoggedPlacement {
  int64_t step = 0;  // the first step that ran under it
  int64_t version = 0;
  Digest digest;
  Placement placement;
  int64_t decided_first_step =
      0;  // the steps whose load was decided on; 0..-1 for the first placement
  int64_t decided_last_step = -1;
  int64_t decision = 0;  // number of the decision that it is a chunk of; 0: not known
  std::string policy;    // that decided; "rollback" when an operator named the placement
  std::string asked_by;  // the operator who asked for it; empty: the daemon's policy
  std::string reason;    // one sentence
};

// errors: InvalidArgument beginning with the path and saying where; NotFound when there is no such
// file.
absl::StatusOr<Placement> ReadPlacementFile(const std::string& path);
// As above, with the replicas' shares where the file has them.
absl::StatusOr<wire::PlacementWithShares> ReadPlacementWithShares(const std::string& path);
// Also checks that steps and versions rise and that every digest is that of its placement; names
// the line.
absl::StatusOr<std::vector<LoggedPlacement>> ReadPlacementsLog(const std::string& path);
// One line without a newline.
std::string PlacementsLogLine(const LoggedPlacement& entry);

}  // namespace eplb

#endif  // EPLB_PROTO_WIRE_PLACEMENT_JSON_H_
