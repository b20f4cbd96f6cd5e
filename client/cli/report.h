// `eplbctl report`: checks and sums up what a run of the demonstration trainer left in its log
// directory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/cli/command_tree.h"

namespace eplb::cli {

struct ReportOptions {
  std::string directory;
  std::string events;          // path of the events file; empty: directory/events.json
  std::string out;             // path for the JSON form, may be empty
  std::string html;            // path for the web page, may be empty
  int64_t window_steps = 50;   // length of a window of the hindsight line and of the page
  int64_t min_rebalances = 0;  // fewer are a problem
  // A smaller gain of balancedness over that without EPLB is a problem [0, 1]; absent: no limit.
  std::optional<double> min_gain;
  Format format = Format::kTable;
};

// With Format::kTrace it prints only the times that the ranks logged, which needs no run.json, and
// checks nothing. Exit 0 if everything holds, 8 if an invariant is broken, a figure differs or a
// byte was not verified, 2 if the directory cannot be read as a run, 1 if a file cannot be written.
Output RunReportCommand(const ReportOptions& options, const Terminal& terminal);

void AddReport(const Flags& root);

}  // namespace eplb::cli
