// Which node each expert group of a layer is at home on. threads: safe, no state.
#ifndef EPLB_PLACEMENT_SEARCH_NODE_AFFINITY_H_
#define EPLB_PLACEMENT_SEARCH_NODE_AFFINITY_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

// The home of each expert group [K], read from what the slots of a layer hold [S] (-1: nothing). A
// home is a node that holds every expert of the group, the first of several. None when a group has
// no such node, and under kStrict also when another node holds one of its experts or when nodes are
// home to different numbers of groups.
// REQUIRES: hierarchy is not kNone and fits the topology.
std::optional<std::vector<int32_t>> NodeAffinityOf(const Topology& topology, Hierarchy hierarchy,
                                                   std::span<const int32_t> slots);

// The placement with the same slots in which every expert whose primary is off its group's home has
// the lowest slot there as primary, the others following in rising slots. A layer without
// affinities stays as it is. REQUIRES: hierarchy is not kNone and fits the topology.
absl::StatusOr<Placement> WithPrimariesOnAffineNode(const Placement& placement,
                                                    Hierarchy hierarchy);

// Nodes of expert groups that make the nodes' loads even.

// The node of each expert group in each layer, [L, K], as many groups on every node: the fullest
// node of a layer has the least load / sum of GPU speeds there is, exactly up to kMaxPartitions
// ways to put the groups on nodes (search/node_partition.h), beyond that by greedy and exchanges.
// What SolveAlias needs under a strict hierarchy, where only the nodes' loads matter. speeds: null
// for GPUs that are all usable and equally fast. errors: InvalidArgument when load and topology
// differ in layers or experts, or K % N or E % K is not 0; for a node without a usable GPU. cost:
// O(L * ways), O(L * E). threads: safe, no state.
absl::StatusOr<IndexMatrix> NodeAffinityByLoad(const Load& load, const Topology& topology,
                                               const GpuSpeeds* speeds = nullptr);

// How much of a layer's work leaves the node of its expert group.

struct CrossingShare {
  std::vector<double> per_layer;  // [L], 0..1; 0 for a layer without load
  double mean = 0;                // over layers with load
  double max = 0;                 // likewise
};

// The share of tokens that replicas off the home node of their expert group serve. A home is as
// NodeAffinityOf above reads it under a soft hierarchy. shares: [L, S], the part of its
// expert's tokens that a slot takes; null for equal parts.
// errors: InvalidArgument when load and placement differ in layers or experts, shares in shape, K %
// N or E % K is not 0, or, naming the layer, an expert group has no node with all its experts.
// cost: O(L * (S + N * E)). threads: safe, no state.
absl::StatusOr<CrossingShare> ComputeCrossingShare(const Load& load, const Placement& placement,
                                                   const RealMatrix* shares = nullptr);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_SEARCH_NODE_AFFINITY_H_
