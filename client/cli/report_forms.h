// The forms of a run's report: text, web page and trace.
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"

#include "client/cli/run_review.h"
#include "client/cli/terminal.h"
#include "client/run_log/run_directory.h"

#include <nlohmann/json_fwd.hpp>

namespace eplb::cli {

// Begins with the time that the run took and the time that it would have taken without EPLB. Each
// figure is marked as measured or predicted.
std::string ReportText(const RunDirectory& run, const v1::RunReview& review,
                       const Terminal& terminal);

// The keys of v1::Plan, of which a run does not know all, and those of v1::RunDecision.
nlohmann::ordered_json DecisionJson(const v1::RunDecision& decision);

// Documents for HtmlReport. Windows are balancedness.hindsight_window_steps long; balancedness of a
// window is MeasuredBalancedness, that of the whole run the review's, as in `report -o json`. Three
// keys are the page's own: of a decision "switched_unix_micros", of the job "peak_fall", the share
// of the time without EPLB that its experts took less, and "events_known". from: of the line that
// names the source. errors: InvalidArgument when the files contradict each other. cost: that of
// ReviewRun's figures of the run itself. threads: safe, no state.
absl::StatusOr<nlohmann::ordered_json> RunPage(const RunDirectory& run, const v1::RunReview& review,
                                               const std::string& from);

// A process for each rank: when it became PREPARED, its boundaries with votes, transfer, commit and
// rebuild, and the rounds of the transfer on tracks of their own, because rounds may overlap.
// directory: named in the metadata. cost: O(spans log spans).
std::string RunTrace(const std::string& directory, std::span<const RankTimeline> timelines);

}  // namespace eplb::cli
