// How strongly a placement is tied to nodes and expert groups.
#ifndef EPLB_PLACEMENT_HIERARCHY_H_
#define EPLB_PLACEMENT_HIERARCHY_H_

#include <optional>

#include "absl/status/status.h"

#include "placement/topology.h"

namespace eplb {

enum class Hierarchy {
  kStrict,  // every replica of an expert is on the node of its expert group; K / N groups a node
  kSoft,    // primaries stay on the node of their expert group, other replicas may be anywhere
  kNone,    // neither nodes nor expert groups are looked at
};

// Strict when K % N == 0 and both are above 1, else none.
Hierarchy DefaultHierarchy(const Topology& topology);

// errors: InvalidArgument, naming the numbers, when `hierarchy` is not kNone and K % N or E % K is
// not 0.
absl::Status CheckHierarchy(const Topology& topology, Hierarchy hierarchy);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_HIERARCHY_H_
