#include "server/history/traffic.h"

#include <utility>

#include "base/status_macros.h"

namespace eplb {

absl::StatusOr<Traffic> TrafficBetween(const Placement& before, const Placement& after,
                                       const v1::Plan& plan) {
  EPLB_ASSIGN_OR_RETURN(Flows flows, FlowsBetween(before, after));
  Traffic traffic{.plan = static_cast<int64_t>(plan.plan()),
                  .base_version = static_cast<int64_t>(plan.base_version()),
                  .last_version = static_cast<int64_t>(plan.last_version()),
                  .num_gpus = before.topology().num_gpus(),
                  .num_nodes = before.topology().num_nodes(),
                  .flows = std::move(flows)};
  if (plan.has_received_bytes()) {
    traffic.received_bytes = static_cast<int64_t>(plan.received_bytes());
  }
  return traffic;
}

}  // namespace eplb
