// Placements that need no search: every GPU gets exactly the mean load, if tokens may be split
// unevenly and each GPU has a spare slot.
#pragma once

#include <optional>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

struct EvenPlacement {
  Placement placement;
  // [L, S]: the fraction of its expert's tokens that a slot takes. Each is in 0..1 and an expert's
  // shares sum to 1; they are equal for an expert without load.
  RealMatrix shares;
};

// Returns a placement and shares with every usable GPU at the mean load, however skewed the load
// is. If `node_of_group` puts each expert group on a node, every GPU is at the mean of its node.
// Tokens are rounded to 2^-61 of the layer's load.
//
// No value unless the usable GPUs are equally fast and every domain (the layer or a node) fits: no
// GPU has more slots than there are experts, and all GPUs could hold every expert with one slot
// less than the fewest each. For GPUs of S / G slots that is S >= E + G: 288 / 32 and 320 / 64
// slots / GPUs for 256 experts, 144 / 16 for 128, 512 / 64 for 384.
//
// No GPU holds an expert twice. At most one expert of a GPU continues on a later one, so at most
// E + G - 1 slots take tokens. Each other slot holds the expert with the most load per replica that
// its GPU lacks. Slots of an unusable GPU hold -1. Without load the replica counts of experts
// differ by at most one. The lowest slot of an expert is its primary. Deterministic.
//
// node_of_group: [L, K], 0..N-1, or null. REQUIRES: speeds of all GPUs; E % K == 0 with nodes.
//
// errors: InvalidArgument if load and topology differ in layers or experts. source and proof:
// alias_placement.cc. cost: O(L * E * (log E + G)). threads: safe, no state.
absl::StatusOr<std::optional<EvenPlacement>> PlaceEvenly(const Load& load, const Topology& topology,
                                                         const GpuSpeeds& speeds,
                                                         const IndexMatrix* node_of_group);

}  // namespace eplb
