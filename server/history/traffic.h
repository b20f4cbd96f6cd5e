// Which experts a decision sent from which GPU to which.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

#include "placement/placement.h"
#include "placement/traffic.h"
#include "server/core/values/record.h"

namespace eplb {

// Transfers as Plan::transfers counts them, in one EP group. Bytes were counted by the ranks over
// all EP groups; with equal rows a flow's part of them is its part of the transfers.
struct Traffic {
  int64_t plan = 0;
  int64_t base_version = 0;
  int64_t last_version = 0;
  int32_t num_gpus = 0;
  int32_t num_nodes = 0;
  std::optional<int64_t> received_bytes;  // measured; none: not known
  Flows flows;
};

// plan: the decision that led from `before` to `after`. errors, cost: those of FlowsBetween.
absl::StatusOr<Traffic> TrafficBetween(const Placement& before, const Placement& after,
                                       const v1::Plan& plan);

}  // namespace eplb
