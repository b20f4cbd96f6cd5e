// How much of a layer's work leaves the node of its expert group.
#ifndef EPLB_PLACEMENT_CROSSING_H_
#define EPLB_PLACEMENT_CROSSING_H_

#include <vector>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

struct CrossingShare {
  std::vector<double> per_layer;  // [L], 0..1; 0 for a layer without load
  double mean = 0;                // over layers with load
  double max = 0;                 // likewise
};

// The share of tokens that replicas off the home node of their expert group serve. A home is as
// HomesOf in search/homes.h reads it under a soft hierarchy. shares: [L, S], the part of its
// expert's tokens that a slot takes; null for equal parts.
// errors: InvalidArgument when load and placement differ in layers or experts, shares in shape, K %
// N or E % K is not 0, or, naming the layer, an expert group has no node with all its experts.
// cost: O(L * (S + N * E)). threads: safe, no state.
absl::StatusOr<CrossingShare> ComputeCrossingShare(const Load& load, const Placement& placement,
                                                   const RealMatrix* shares = nullptr);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_CROSSING_H_
