// Checks and answers that all policies share.
#include "placement/policy.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/align.h"

namespace eplb {

absl::Status CheckWanted(const PolicyInput& input) {
  if (!IsAbandoned(input.abandoned)) return absl::OkStatus();
  return absl::CancelledError("the search was abandoned before its end");
}

absl::Status CheckShapes(const PolicyInput& input) {
  const Topology& topology = input.topology;
  if (input.previous != nullptr) {
    EPLB_RETURN_IF_ERROR(
        CheckSameTopology("previous", input.previous->topology(), "next", topology));
  }
  const auto check = [&](const char* name, const Load& load) {
    if (load.num_layers() == topology.num_layers() &&
        load.num_experts() == topology.num_experts()) {
      return absl::OkStatus();
    }
    return InvalidInput(name, " has ", load.num_layers(), " layers x ", load.num_experts(),
                        " experts, the topology has ", topology.num_layers(), " x ",
                        topology.num_experts());
  };
  EPLB_RETURN_IF_ERROR(check("load", input.load));
  for (const Load& window : input.recent) EPLB_RETURN_IF_ERROR(check("recent window", window));
  return CheckScenariosFit(input);
}

absl::Status CheckScenariosFit(const PolicyInput& input) {
  if (input.scenarios.empty()) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(CheckScenarios(input.scenarios));
  return CheckLoadFits(input.scenarios.front().load, input.topology);
}

absl::StatusOr<Placement> SolveAligned(const Policy& policy, const PolicyInput& input) {
  PolicyInput asked = input;
  if (input.speeds != nullptr && input.speeds->all_equal()) asked.speeds = nullptr;
  EPLB_ASSIGN_OR_RETURN(Placement placement, policy.Solve(asked));
  if (input.previous == nullptr) return placement;
  return Align(*input.previous, placement);
}

}  // namespace eplb
