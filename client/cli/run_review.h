// Everything that can be checked and computed again about a recorded run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "client/run_log/run_directory.h"

#include "eplb/v1/review.pb.h"

namespace eplb::cli {

struct OperatorReview {
  v1::OperatorReview changes;
  std::vector<bool> decided;  // [steps]: false in those held back
};

// Without events, there is no action and every step is decided. The daemon's clock places an event
// between two steps of rank 0's clock. Refused changes and changes before the run began or after it
// ended are left out; a pause or mode that was active when the run began counts.
OperatorReview ReviewOperators(const RunReport& report, const std::optional<LoggedEvents>& events);

// True if the comparison leaves out steps in which operators held decisions back.
bool LeavesStepsOut(const v1::RunReview& review);

// A figure that differs by more than this from what the run reported is a problem.
inline constexpr double kBalancednessTolerance = 1e-9;

// window_steps >= 1: the report window of the run. errors: InvalidArgument when the files
// contradict each other so that no figure can be computed.
absl::StatusOr<v1::RunReview> ReviewRun(const RunDirectory& run, int64_t window_steps);

}  // namespace eplb::cli
