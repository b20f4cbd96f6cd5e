// The web page of a recorded run: `eplbctl report --html`.
#ifndef EPLB_CLIENT_CLI_RUN_PAGE_H_
#define EPLB_CLIENT_CLI_RUN_PAGE_H_

#include <string>

#include "absl/status/statusor.h"

#include "client/cli/run_review.h"
#include "client/run_log/run_directory.h"

#include <nlohmann/json_fwd.hpp>

namespace eplb::cli {

// Documents for HtmlReport. Windows are review.window_steps long; balancedness of a window is
// MeasuredBalancedness, that of the whole run the review's, as in `report -o json`. Four keys are
// the page's own: of a decision "balancedness_computed" and "switched_unix_micros", of the job
// "peak_fall", the share of the time without EPLB that its experts took less, and "events_known".
// A decision without a number gets its place, from 1. from: of the line that names the source.
// errors: InvalidArgument when the files contradict each other. cost: that of ReviewRun's figures
// of the run itself. threads: safe, no state.
absl::StatusOr<nlohmann::ordered_json> RunPage(const RunDirectory& run, const RunReview& review,
                                               const std::string& from);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_RUN_PAGE_H_
