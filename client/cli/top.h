// `eplbctl top`: a job on one screen, which is drawn again and again.
#pragma once

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::cli {

// State, balancedness, the GPU loads of all layers together beside those of the static layout, and
// the worst layers. JSON: as `explain`.
Output RunTop(const JobQuery& options, const Terminal& terminal);

void AddTop(const Flags& root);

}  // namespace eplb::cli
