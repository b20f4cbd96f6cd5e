// The picture of a run: balancedness over steps as SVG, for a browser or a README.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_REPORT_PICTURE_H_
#define EPLB_CLIENT_CLI_REPORT_PICTURE_H_

#include <string>

#include "client/cli/run_review.h"

namespace eplb::cli {

// Two lines, the run and the static layout, a mark at each switch, and a grey field over the steps
// in which operators held decisions back. With many steps a point is the mean of neighbours; the
// picture says of how many. job: of the heading.
std::string ReportPicture(const std::string& job, const RunReview& review);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_REPORT_PICTURE_H_
