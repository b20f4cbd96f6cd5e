// `eplbctl diff`: what moves between two placements.
#ifndef EPLB_CLIENT_CLI_DIFF_H_
#define EPLB_CLIENT_CLI_DIFF_H_

#include <string>

#include "client/cli/flags.h"
#include "client/cli/query_client.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct DiffOptions {
  QueryOptions query;
  std::string job;  // of versions; empty: the only one
  // Each a file, "vN" (version N, while the daemon keeps it) or "now" (the one in force).
  std::string from;
  std::string to;
  std::string load;  // file: also tells balancedness under it; empty: not told
  LoadReading reading = {};
};

// Exit 0 when both are equal, 8 when they differ. JSON: {"from","to","layers_changed","transfers",
// "slots_changed","primaries_changed","max_per_gpu","cross_node","balancedness_from",
// "balancedness_to","layers":[{"layer","transfers":[{"expert","from","to"}]}]}; GPUs in transfers;
// the two balancedness are null without --load, and for a load without tokens.
Output RunDiff(const DiffOptions& options, const Terminal& terminal);

void AddDiff(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DIFF_H_
