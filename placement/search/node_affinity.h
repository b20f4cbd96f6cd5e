// Homes of expert groups: the nodes that hold all their experts. threads: safe, no state.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

// Reads the home of each expert group [K] from the slots of a layer [S] (-1: empty). A home is a
// node that holds every expert of the group, the first of several. No value if a group has no home.
// Under kStrict all experts must be at home alone, and nodes be home to equally many groups.
// REQUIRES: hierarchy is not kNone and fits the topology.
std::optional<std::vector<int32_t>> NodeAffinityOf(const Topology& topology, Hierarchy hierarchy,
                                                   std::span<const int32_t> slots);

// Moves the primary of every expert to its group's home: the lowest slot there becomes the primary,
// and the others follow in rising order. Slots stay as they are, and so does a layer without homes.
// Under another hierarchy than kSoft nothing changes. REQUIRES: the hierarchy fits the topology.
absl::StatusOr<Placement> WithPrimariesOnAffineNode(const Placement& placement,
                                                    Hierarchy hierarchy);

struct CrossingShare {
  double mean = 0;  // over layers with load [0, 1]
  double max = 0;   // largest of any layer
};

// Computes the share of tokens that replicas off the home of their expert serve. Homes are those of
// NodeAffinityOf under a soft hierarchy. shares: [L, S], the part of its expert's tokens that a
// slot takes; null for equal parts.
//
// errors: InvalidArgument if load and placement differ in layers or experts, or K % N or E % K is
// not 0; naming the layer, if an expert group has no home. cost: O(L * (S + N * E)). threads: safe,
// no state.
absl::StatusOr<CrossingShare> ComputeCrossingShare(const Load& load, const Placement& placement,
                                                   const RealMatrix* shares = nullptr);

}  // namespace eplb
