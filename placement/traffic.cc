#include "placement/traffic.h"

#include <map>
#include <utility>

#include "base/status_macros.h"
#include "placement/migration_plan.h"

namespace eplb {
namespace {

using Counts = std::map<std::pair<int32_t, int32_t>, int64_t>;

std::vector<Flow> FlowsOf(const Counts& counts) {
  std::vector<Flow> flows;
  flows.reserve(counts.size());
  for (const auto& [link, transfers] : counts) {
    flows.push_back({.from = link.first, .to = link.second, .transfers = transfers});
  }
  return flows;
}

}  // namespace

absl::StatusOr<Flows> FlowsBetween(const Placement& before, const Placement& after) {
  EPLB_ASSIGN_OR_RETURN(const MigrationPlan moved,
                        PlanTransfers(before, after, {}, {.weight_bytes = 1}));
  const Topology& topology = before.topology();
  Counts gpus;
  Counts nodes;
  for (const Transfer& one : moved.transfers) {
    ++gpus[{one.source.value, one.destination.value}];
    ++nodes[{topology.NodeOf(one.source).value, topology.NodeOf(one.destination).value}];
  }
  return Flows{.transfers = std::ssize(moved.transfers),
               .cross_node_transfers = moved.cross_node_transfers,
               .gpus = FlowsOf(gpus),
               .nodes = FlowsOf(nodes)};
}

}  // namespace eplb
