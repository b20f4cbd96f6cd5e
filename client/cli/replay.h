// `eplbctl replay`: decides on a recorded trace as the daemon would have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/query_client.h"
#include "client/cli/shape_options.h"
#include "placement/policies/registry.h"
#include "placement/replay/replay.h"
#include "proto/wire/settings.h"

namespace eplb::cli {

// Number of windows that a decision looks at by default.
inline constexpr int64_t kDefaultHistory = 4;

struct ReplayCommandOptions {
  std::string trace;
  LoadReading reading;
  ShapeOptions frame = {.policy = kServicePolicyName};
  std::optional<int32_t> slots;  // absent: one an expert, rounded up to full GPUs
  CostOptions costs;
  int64_t every = 1;
  std::optional<int64_t> history;  // windows; absent: kDefaultHistory
  std::string window;              // empty: "sum"
  std::string split = "equal";     // equal, batch
  double min_gain = wire::Settings().min_gain;
  std::optional<int64_t> horizon_windows;
  std::optional<int64_t> vote_every;  // steps; absent: of the job, or the client's default
  std::optional<int64_t> staging;     // layers; likewise
  std::string max_pause;              // a duration; empty: likewise
  std::string like;                   // job of the daemon in `query`; empty: none
  QueryOptions query;
  std::string html;  // path for the web page, may be empty

  std::string window_rule() const { return window.empty() ? "sum" : window; }
};

// Exit 2 for bad flags, files and shapes, 1 if the page cannot be written; that of Ask for --like.
Output RunReplay(const ReplayCommandOptions& options, const Terminal& terminal);

// Text in which no line is wider than the terminal.
std::string ReplayToTable(const ReplayCommandOptions& options, const Topology& topology,
                          const ReplayResult& result, const Terminal& terminal);

}  // namespace eplb::cli
