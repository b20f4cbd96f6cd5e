// How many experts a change of placements sends from which GPU to which.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/placement.h"

namespace eplb {

struct Flow {
  int32_t from = 0;
  int32_t to = 0;
  int64_t transfers = 0;
};

// A transfer is one (layer, expert, destination GPU) that did not hold the expert before.
struct Flows {
  int64_t transfers = 0;             // sum over `gpus`
  int64_t cross_node_transfers = 0;  // sum over the `nodes` with from != to
  std::vector<Flow> gpus;            // by source, then destination; only where something moved
  std::vector<Flow> nodes;           // by source, then destination; from == to: inside a node
};

// Returns the flows if all layers moved in one chunk. If an expert has several sources on a node,
// ranks that move in several chunks may choose another one.
// errors: InvalidArgument when the placements have different topologies, others of PlanMigration.
// cost: that of PlanMigration. threads: safe, no state.
absl::StatusOr<Flows> FlowsBetween(const Placement& before, const Placement& after);

}  // namespace eplb
