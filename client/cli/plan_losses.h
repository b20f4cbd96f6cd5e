// Placements after the loss of GPUs (`eplbctl plan --without-gpus`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/plan_report.h"
#include "client/cli/shape_options.h"
#include "client/cli/terminal.h"
#include "placement/evaluate.h"
#include "placement/placement.h"

namespace eplb::cli {

// The answers to the loss of each usable GPU alone.
struct LossAnswers {
  struct Answer {
    int32_t gpu;  // the GPU that is taken away; `loss` also has unusable GPUs that held experts
    Loss loss;
    Placement placement;
    Evaluation after;
  };
  Evaluation before;
  std::vector<Answer> answers;
  double solve_seconds = 0;
};

// REQUIRES: the problem has a previous placement. errors: InvalidArgument, naming the GPU without
// which there are too few slots.
absl::StatusOr<LossAnswers> PlanEachLoss(const ShapeOptions& frame, const PlanProblem& problem);

// One line with a newline, with the placements. errors: InvalidArgument above 256 MiB.
absl::StatusOr<std::string> LossAnswersToJson(const LossAnswers& answers);
std::string LossAnswersToTable(const LossAnswers& answers, const Terminal& terminal);

}  // namespace eplb::cli
