// Proved lower bounds on the largest GPU load of any placement: the certificate beside each answer.
#ifndef EPLB_PLACEMENT_SEARCH_BOUND_H_
#define EPLB_PLACEMENT_SEARCH_BOUND_H_

#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/search/domain.h"
#include "placement/topology.h"

namespace eplb {

struct BoundOptions {
  const GpuSpeeds* speeds = nullptr;  // none: all usable and equally fast
  Hierarchy hierarchy = Hierarchy::kNone;
  bool any_split = false;  // tokens need not be split equally among an expert's replicas
};

// For each layer, a load that no placement on this topology can go below. Flat and soft: the bound
// of all usable GPUs as one domain (bound.cc has the proof). Strict: the least, over
// all ways to put the expert groups on nodes, of the largest bound of a node with its groups; where
// there are more than kMaxPartitions ways, the flat bound, which holds under any hierarchy. 0 for a
// layer without load. Rounded as doubles are: a placement that meets its bound may evaluate some
// last bits below it.
// errors: InvalidArgument when load and topology differ in layers or experts, speeds in GPUs, or
// the hierarchy does not fit. cost: O(L * E * slots per GPU) and, when strict, that times the sets
// of groups a node can get. threads: safe, no state.
absl::StatusOr<std::vector<double>> LowerBounds(const Load& load, const Topology& topology,
                                                const BoundOptions& options = {});

// A proved lower bound on the largest GPU load of a domain.

// No arrangement of the domain, with or without duplicates, has a smaller largest GPU load when an
// expert's tokens are split equally among its replicas. The largest of
//   total load / total speed, and
//   for k = 1 .. most slots of a GPU: the least T that k does not refute. Let v be the fastest
//   speed. A unit must be at most T * v, so an expert of load w needs ceil(w / (T v)) replicas; a
//   unit above T * v / k is long, and a GPU has room for at most k - 1 long ones, so all GPUs
//   together for m (k - 1). An expert with ceil(k w / (T v)) replicas has no long unit. The
//   cheapest mix of the two, relaxed to fractions, must fit into the slots, or T is refuted. (k = 1
//   is the least T with sum of ceil(w / T) <= S; k = 2 and more bind where few slots are to spare.)
// With `any_split` an expert's tokens may be split unequally: k = 1 still holds, larger k do not.
// cost: O(k * n * log(1 / precision)); 0 for a domain without load. threads: safe, no state.
double DomainBound(const Domain& domain, bool any_split = false);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_BOUND_H_
