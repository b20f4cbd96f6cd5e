// The times of one decision, as the daemon saw them: a table, and a trace. The trace shows only
// what is known to have happened; "not_known" in its metadata lists what is missing.
#pragma once

#include <string>

#include "client/cli/terminal.h"

namespace eplb::v1 {
class Plan;
}

namespace eplb::cli {

// One process, the daemon: the window, the solver, each chunk with its ranks' PREPARED and their
// vote and switch, and a track for each rank that is known by name, in the daemon's time. Only the
// rank knows when its boundary was within "vote and switch". plan: an answer of GetPlan.
std::string PlanTrace(const std::string& job, const v1::Plan& plan);

// When each part began and how long it took.
std::string TimesTable(const v1::Plan& plan, const Terminal& terminal);

}  // namespace eplb::cli
