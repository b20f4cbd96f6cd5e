// Decisions as text, those of a daemon and those of a recorded run.
#pragma once

#include <string>

#include "client/cli/message_table.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

// The result with the chunks that were committed: "partial 1/2".
const CellWords& PlanWords();

// "plan 8 (asked for by alice): the predicted peak falls by 27 %".
std::string PlanReason(const v1::Plan& plan);

}  // namespace eplb::cli
