// Which node each expert group of a layer is at home on. threads: safe, no state.
#ifndef EPLB_PLACEMENT_SEARCH_HOMES_H_
#define EPLB_PLACEMENT_SEARCH_HOMES_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/hierarchy.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

// The home of each expert group [K], read from what the slots of a layer hold [S] (-1: nothing). A
// home is a node that holds every expert of the group, the first of several. None when a group has
// no such node, and under kStrict also when another node holds one of its experts or when nodes are
// home to different numbers of groups.
// REQUIRES: hierarchy is not kNone and fits the topology.
std::optional<std::vector<int32_t>> HomesOf(const Topology& topology, Hierarchy hierarchy,
                                            std::span<const int32_t> slots);

// The placement with the same slots in which every expert whose primary is off its group's home has
// the lowest slot there as primary, the others following in rising slots. A layer without homes
// stays as it is. REQUIRES: hierarchy is not kNone and fits the topology.
absl::StatusOr<Placement> WithPrimariesAtHome(const Placement& placement, Hierarchy hierarchy);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_HOMES_H_
