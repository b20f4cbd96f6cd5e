// Decisions as text, those of a daemon and those of a recorded run.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "client/cli/message_table.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {

// The result with the chunks that were committed, "partial 1/2", and the prediction with its error.
const CellWords& PlanWords();
// All figures of a decision as a list.
std::string PlanFigures(const v1::Plan& plan);

// A table with a row for each load of a placement that was made for several, after an empty line;
// otherwise empty.
std::string ScenariosText(const v1::Plan& plan, const Terminal& terminal);
// "Objective mean: max / mean GPU load, weighted mean over the loads, is 1.0310 on average over
// layers (before 1.1123)." objective: "mean" or "worst".
std::string ScenarioObjectiveText(std::string_view objective, const std::optional<double>& figure,
                                  std::string_view before_name,
                                  const std::optional<double>& before);

// "plan 8 (asked for by alice): the predicted peak falls by 27 %".
std::string PlanReason(const v1::Plan& plan);

}  // namespace eplb::cli
