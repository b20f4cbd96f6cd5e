// Which experts a decision sent from which GPU to which.
#ifndef EPLB_SERVER_HISTORY_TRAFFIC_H_
#define EPLB_SERVER_HISTORY_TRAFFIC_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/placement.h"
#include "server/core/values/record.h"

namespace eplb {

struct Flow {
  int32_t from = 0;
  int32_t to = 0;
  int64_t transfers = 0;
};

// A transfer is one (layer, expert, destination GPU) that did not hold the expert before, as
// Plan::transfers counts it, in one EP group. The two placements give the flows as if all layers
// moved in one chunk: where an expert has several sources on the same node, the ranks may have
// chosen another one. Bytes were counted by the ranks over all EP groups; with equal rows a flow's
// part of them is its part of the transfers.
struct Traffic {
  int64_t plan = 0;
  int64_t base_version = 0;
  int64_t last_version = 0;
  int32_t num_gpus = 0;
  int32_t num_nodes = 0;
  int64_t transfers = 0;  // sum over `gpus`
  int64_t cross_node_transfers = 0;
  std::optional<int64_t> received_bytes;  // measured; none: not known
  std::vector<Flow> gpus;                 // by source, then destination; only where something moved
  std::vector<Flow> nodes;                // likewise; from == to: inside a node
};

// plan: the decision that led from `before` to `after`.
// errors: InvalidArgument when the placements have different topologies, others of PlanMigration.
// cost: that of PlanMigration. threads: safe, no state.
absl::StatusOr<Traffic> TrafficBetween(const Placement& before, const Placement& after,
                                       const core::Plan& plan);

}  // namespace eplb

#endif  // EPLB_SERVER_HISTORY_TRAFFIC_H_
