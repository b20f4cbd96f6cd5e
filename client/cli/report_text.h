// The report of a run as text.
#ifndef EPLB_CLIENT_CLI_REPORT_TEXT_H_
#define EPLB_CLIENT_CLI_REPORT_TEXT_H_

#include <string>

#include "client/cli/run_review.h"
#include "client/cli/terminal.h"
#include "client/run_log/run_directory.h"

namespace eplb::cli {

// Begins with the time that the run took and the time that it would have taken without EPLB. Each
// figure is marked as measured or predicted.
std::string ReportText(const RunDirectory& run, const RunReview& review, const Terminal& terminal);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_REPORT_TEXT_H_
