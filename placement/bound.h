// Proved lower bounds on the largest GPU load of any placement: the certificate beside each answer.
#ifndef EPLB_PLACEMENT_BOUND_H_
#define EPLB_PLACEMENT_BOUND_H_

#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/hierarchy.h"
#include "placement/load.h"
#include "placement/topology.h"

namespace eplb {

struct BoundOptions {
  const GpuSpeeds* speeds = nullptr;  // none: all usable and equally fast
  Hierarchy hierarchy = Hierarchy::kNone;
  bool any_split = false;  // tokens need not be split equally among an expert's replicas
};

// For each layer, a load that no placement on this topology can go below. Flat and soft: the bound
// of all usable GPUs as one domain (search/domain_bound.h has the proof). Strict: the least, over
// all ways to put the expert groups on nodes, of the largest bound of a node with its groups; where
// there are more than kMaxPartitions ways, the flat bound, which holds under any hierarchy. 0 for a
// layer without load. Rounded as doubles are: a placement that meets its bound may evaluate some
// last bits below it.
// errors: InvalidArgument when load and topology differ in layers or experts, speeds in GPUs, or
// the hierarchy does not fit. cost: O(L * E * slots per GPU) and, when strict, that times the sets
// of groups a node can get. threads: safe, no state.
absl::StatusOr<std::vector<double>> LowerBounds(const Load& load, const Topology& topology,
                                                const BoundOptions& options = {});

}  // namespace eplb

#endif  // EPLB_PLACEMENT_BOUND_H_
