// Proved lower bounds on the largest GPU load of any placement: the certificate beside each answer.
#pragma once

#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/topology.h"

namespace eplb {

struct BoundOptions {
  const GpuSpeeds* speeds = nullptr;  // null: all usable and equally fast
  Hierarchy hierarchy = Hierarchy::kNone;
  bool any_split = false;  // an expert's replicas may take unequal shares of its tokens
};

// Returns for each layer a load that no placement on this topology can go below. Flat and soft: the
// bound of all usable GPUs as one domain (domain_bound.h has the proof). Strict: the least, over
// all ways to put the expert groups on nodes, of the largest bound of a node with its groups. If
// there are more than kMaxPartitions ways, the flat bound, which holds under any hierarchy. 0 for a
// layer without load. Rounding of doubles may evaluate a placement that meets its bound a few last
// bits below it.
//
// REQUIRES: speeds of all GPUs; the experts fit on the usable GPUs (of their node, if strict).
//
// errors: InvalidArgument if load and topology differ in layers or experts, or the hierarchy does
// not fit. cost: O(L * E * slots per GPU), if strict times the sets of groups that a node can get.
// threads: safe, no state.
absl::StatusOr<std::vector<double>> LowerBounds(const Load& load, const Topology& topology,
                                                const BoundOptions& options = {});

}  // namespace eplb
