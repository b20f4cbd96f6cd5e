// The one sentence of an abandoned search, which every policy gives; so it has a file of its own.
#include "placement/policy.h"

namespace eplb {

absl::Status CheckWanted(const PolicyInput& input) {
  if (!IsAbandoned(input.abandoned)) return absl::OkStatus();
  return absl::CancelledError("the search was abandoned before its end");
}

}  // namespace eplb
