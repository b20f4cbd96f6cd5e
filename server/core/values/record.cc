#include "server/core/values/record.h"

namespace eplb::core {

absl::string_view PlanResultName(PlanResult result) {
  constexpr absl::string_view kNames[kNumPlanResults] = {
      "kept", "observed", "proposed", "committed", "withdrawn", "partial", "failed"};
  return kNames[static_cast<size_t>(result)];
}

absl::string_view JobStateName(JobState state) {
  constexpr absl::string_view kNames[] = {"RECOVERING", "IDLE",       "SOLVING",    "PREPARING",
                                          "VOTING",     "CANCELLING", "QUARANTINE", "FINISHED",
                                          "FAILED",     "LOST"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace eplb::core
