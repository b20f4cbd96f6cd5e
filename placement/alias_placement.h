// Exactly even placements where tokens may be split unevenly: one spare slot a GPU is enough.
#ifndef EPLB_PLACEMENT_ALIAS_PLACEMENT_H_
#define EPLB_PLACEMENT_ALIAS_PLACEMENT_H_

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

struct SplitPlacement {
  Placement placement;
  // [L, S]: the fraction of its expert's tokens that a slot takes. Each is in 0..1 and those of an
  // expert sum to 1; equal for an expert without load.
  RealMatrix shares;
  // [L, S]: tokens each slot takes; an expert's sum to its count. Empty for estimates.
  LoadMatrix quotas;
};

// Whether SolveAlias takes the topology: the usable GPUs are equally fast, none has more slots than
// there are experts, and with one slot less than the fewest each they could hold every expert. So
// where all have S / G slots: S >= E + G. 288/32 and 320/64 slots / GPUs of 256 experts do, 144/16
// of 128, 512/64 of 384. speeds: null for GPUs that are all usable and equally fast. (GPUs of
// different speeds would need other means on each; there SplitOptimally does what a placement
// allows.)
bool AliasApplies(const Topology& topology, const GpuSpeeds* speeds = nullptr);
// Whether it does with each expert group on a node of its own choice: the same for every layer and
// node with the node's experts and GPUs. node_of_group: [L, K], 0..N-1. False too for a matrix of
// another shape, a node out of range, or E % K != 0. With K / N groups on every node and S / G
// slots on every GPU: S >= E + G and S / G <= E / N.
bool AliasApplies(const Topology& topology, const Eigen::Ref<const IndexMatrix>& node_of_group,
                  const GpuSpeeds* speeds = nullptr);

// A placement and shares with every usable GPU at the mean load, however skewed the load: for
// counts, every GPU's integer load is at most ceil(mean) in each layer, which is the least there is
// in whole tokens; for estimates, at most the mean but for rounding (each cell is taken as an
// integer multiple of 2^-61 or less of its layer's sum). No expert twice on a GPU. At most one
// expert of a GPU continues on a later one, so at most E + G - 1 slots take tokens. Of the others,
// which take none, each holds the expert with most load per replica that its GPU lacks. Slots of an
// unusable GPU hold -1, quota 0, share 0. Without load the experts are spread: their replica counts
// differ by at most one. The lowest slot of an expert is its primary. Deterministic.
// errors: InvalidArgument when load and topology differ in layers or experts, or AliasApplies is
// false. source and proof: AliasSolver. cost: O(L * S * log E); 58 x 256 on 288 slots and 32 GPUs
// takes about a quarter of a millisecond on one core. threads: safe, no state.
absl::StatusOr<SplitPlacement> SolveAlias(const Load& load, const Topology& topology,
                                          const GpuSpeeds* speeds = nullptr);

// As above with the experts of each group on the GPUs of its node: every GPU at the mean load of
// its node.
absl::StatusOr<SplitPlacement> SolveAlias(const Load& load, const Topology& topology,
                                          const Eigen::Ref<const IndexMatrix>& node_of_group,
                                          const GpuSpeeds* speeds = nullptr);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_ALIAS_PLACEMENT_H_
