// `eplbctl report`: checks and sums up what a run of the demonstration trainer left in its log
// directory.
#ifndef EPLB_CLIENT_CLI_REPORT_H_
#define EPLB_CLIENT_CLI_REPORT_H_

#include <optional>
#include <string>

#include "client/cli/flags.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct ReportOptions {
  std::string directory;
  std::string events;          // path of what operators did; empty: directory/events.json
  std::string out;             // path for the JSON form, may be empty
  std::string picture;         // path for the picture, may be empty
  std::string html;            // path for the web page, may be empty
  int64_t window_steps = 50;   // of the hindsight line and the page
  int64_t min_rebalances = 0;  // fewer are a problem
  // A smaller gain of balancedness over that without EPLB is a problem, 0..1; none: any will do.
  std::optional<double> min_gain;
  Format format = Format::kTable;
};

// With Format::kTrace only what the ranks logged of times, which is also there without run.json;
// nothing is checked.
// Exit 0 when everything holds, 8 when an invariant is broken, a figure differs or a byte was not
// verified, 2 when the directory cannot be read as a run, 1 when a file cannot be written.
Output RunReportCommand(const ReportOptions& options, const Terminal& terminal);

void AddReport(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_REPORT_H_
