// Homes of expert groups that make the nodes' loads even.
#ifndef EPLB_PLACEMENT_GROUP_HOMES_H_
#define EPLB_PLACEMENT_GROUP_HOMES_H_

#include "absl/status/statusor.h"

#include "placement/gpu_speeds.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {

// The node of each expert group in each layer, [L, K], as many groups on every node: the fullest
// node of a layer has the least load / sum of GPU speeds there is, exactly up to kMaxPartitions
// ways to put the groups on nodes (search/node_partition.h), beyond that by greedy and exchanges.
// What SolveAlias needs under a strict hierarchy, where only the nodes' loads matter. speeds: null
// for GPUs that are all usable and equally fast. errors: InvalidArgument when load and topology
// differ in layers or experts, or K % N or E % K is not 0; for a node without a usable GPU. cost:
// O(L * ways), O(L * E). threads: safe, no state.
absl::StatusOr<IndexMatrix> HomesByLoad(const Load& load, const Topology& topology,
                                        const GpuSpeeds* speeds = nullptr);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_GROUP_HOMES_H_
