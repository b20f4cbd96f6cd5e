// `eplbctl diff`: what moves between two placements.
#pragma once

#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/query_client.h"

namespace eplb::cli {

struct DiffOptions {
  QueryOptions query;
  std::string job;  // job whose versions are compared; empty: the only one
  // Each a file, "vN" (version N, while the daemon keeps it) or "now" (the current placement).
  std::string from;
  std::string to;
  std::string load;  // file: balancedness under this load is shown, too; may be empty
  LoadReading reading = {};
};

// Exit 0 if both are equal, 8 if they differ. JSON: {"from","to","layers_changed","transfers",
// "slots_changed","primaries_changed","max_per_gpu","cross_node","balancedness_from",
// "balancedness_to","layers":[{"layer","transfers":[{"expert","from","to"}]}]}; GPUs in transfers;
// the two balancedness are null without --load, and for a load without tokens.
Output RunDiff(const DiffOptions& options, const Terminal& terminal);

void AddDiff(const Flags& root);

}  // namespace eplb::cli
