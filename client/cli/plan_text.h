// Decisions as text, those of a daemon and those of a recorded run.
#pragma once

#include <string>

#include "client/cli/message_table.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

// The result with the chunks that were committed, "partial 1/2", and the prediction with its error.
const CellWords& PlanWords();
// All figures of a decision as a list.
std::string PlanFigures(const v1::Plan& plan);

// "plan 8 (asked for by alice): the predicted peak falls by 27 %".
std::string PlanReason(const v1::Plan& plan);

}  // namespace eplb::cli
