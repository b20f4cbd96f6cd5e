// The picture of a run: balancedness over steps as SVG, for a browser or a README.
#ifndef EPLB_CLIENT_CLI_REPORT_PICTURE_H_
#define EPLB_CLIENT_CLI_REPORT_PICTURE_H_

#include <string>

#include "client/cli/run_review.h"

namespace eplb::cli {

// Two lines, the run and without EPLB; for a run that splits each step exactly two more, its
// placements with equal shares and hindsight. A mark at each switch, and a grey field over the
// steps in which operators held decisions back. With many steps a point is the mean of neighbours;
// the picture shows their number. job: named in the heading.
std::string ReportPicture(const std::string& job, const RunReview& review);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_REPORT_PICTURE_H_
