// `eplbctl replay`: what rebalancing would have done on a recorded trace.
#ifndef EPLB_CLIENT_CLI_REPLAY_H_
#define EPLB_CLIENT_CLI_REPLAY_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/cli/flags.h"
#include "client/cli/shape_options.h"
#include "client/cli/terminal.h"
#include "placement/replay/replay.h"

namespace eplb::cli {

struct ReplayCommandOptions {
  std::string trace;
  LoadReading reading;
  ShapeOptions frame;
  int32_t slots = 0;
  CostOptions costs;
  int64_t every = 1;
  std::optional<int64_t> history;     // none: 4
  std::optional<std::string> window;  // none: "sum"
  std::string split = "equal";        // equal, batch
  double min_gain = 0.05;
  std::optional<int64_t> horizon_windows;
  std::string html;  // path for the web page, may be empty
  Format format = Format::kTable;
};

// Exit 2 for bad flags, files and shapes, 1 when the page cannot be written.
Output RunReplay(const ReplayCommandOptions& options, const Terminal& terminal);

// For people; no line is wider than the terminal.
std::string ReplayToTable(const ReplayCommandOptions& options, const Topology& topology,
                          const ReplayResult& result, const Terminal& terminal);

void AddReplay(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_REPLAY_H_
