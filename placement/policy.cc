// The one sentence of an abandoned search, which every policy gives; so it has a file of its own.
#include "placement/policy.h"

#include "base/status_macros.h"
#include "placement/align.h"

namespace eplb {

absl::Status CheckWanted(const PolicyInput& input) {
  if (!IsAbandoned(input.abandoned)) return absl::OkStatus();
  return absl::CancelledError("the search was abandoned before its end");
}

absl::StatusOr<Placement> SolveAligned(const Policy& policy, const PolicyInput& input) {
  PolicyInput asked = input;
  if (input.speeds != nullptr && input.speeds->all_equal()) asked.speeds = nullptr;
  EPLB_ASSIGN_OR_RETURN(Placement placement, policy.Solve(asked));
  if (input.previous == nullptr) return placement;
  return Align(*input.previous, placement);
}

}  // namespace eplb
