#include "server/history/traffic.h"

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

absl::StatusOr<Traffic> TrafficBetween(const Placement& before, const Placement& after,
                                       const core::Plan& plan) {
  EPLB_ASSIGN_OR_RETURN(const MigrationPlan moved,
                        PlanMigration(before, after, {}, {.weight_bytes = 1}));
  const Topology& topology = before.topology();
  Counts gpus;
  Counts nodes;
  for (const Transfer& one : moved.transfers) {
    ++gpus[{one.source.value, one.destination.value}];
    ++nodes[{topology.NodeOf(one.source).value, topology.NodeOf(one.destination).value}];
  }
  Traffic traffic{.plan = plan.plan,
                  .base_version = plan.base_version,
                  .last_version = plan.last_version,
                  .num_gpus = topology.num_gpus(),
                  .num_nodes = topology.num_nodes(),
                  .transfers = std::ssize(moved.transfers),
                  .cross_node_transfers = moved.cross_node_transfers,
                  .gpus = FlowsOf(gpus),
                  .nodes = FlowsOf(nodes)};
  if (plan.received_bytes != core::kNotMeasured) traffic.received_bytes = plan.received_bytes;
  return traffic;
}

}  // namespace eplb
