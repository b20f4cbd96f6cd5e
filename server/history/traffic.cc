#include "server/history/traffic.h"

#include <utility>

#include "base/status_macros.h"

namespace eplb {

absl::StatusOr<Traffic> TrafficBetween(const Placement& before, const Placement& after,
                                       const core::Plan& plan) {
  EPLB_ASSIGN_OR_RETURN(Flows flows, FlowsBetween(before, after));
  Traffic traffic{.plan = plan.plan,
                  .base_version = plan.base_version,
                  .last_version = plan.last_version,
                  .num_gpus = before.topology().num_gpus(),
                  .num_nodes = before.topology().num_nodes(),
                  .flows = std::move(flows)};
  if (plan.received_bytes != core::kNotMeasured) traffic.received_bytes = plan.received_bytes;
  return traffic;
}

}  // namespace eplb
