// The report of a run as text for people.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_REPORT_TEXT_H_
#define EPLB_CLIENT_CLI_REPORT_TEXT_H_

#include <string>

#include "client/cli/run_review.h"
#include "client/cli/terminal.h"
#include "client/run_log/run_directory.h"

namespace eplb::cli {

// Begins with the time that the run took and the time that it would have taken without EPLB, and
// says of each figure whether it was measured or predicted.
std::string ReportText(const RunDirectory& run, const RunReview& review, const Terminal& terminal);

// The picture of a run: balancedness over steps as SVG, for a browser or a README.
// threads: safe, no state.

// Two lines, the run and without EPLB; of a run that splits each step exactly two more, its
// placements with equal shares and hindsight. A mark at each switch, and a grey field over the
// steps in which operators held decisions back. With many steps a point is the mean of neighbours;
// the picture says of how many. job: of the heading.
std::string ReportPicture(const std::string& job, const RunReview& review);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_REPORT_TEXT_H_
