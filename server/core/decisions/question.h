// Question and answer of a decision as plain values, so that a solver's thread decides while the
// state changes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/statusor.h"

#include "placement/backtest/planner.h"
#include "server/core/decisions/evaluate_candidate.h"
#include "server/core/state/windows.h"

namespace eplb::core {

// State of the job when its policy was asked. Fields without a comment: see CandidateInput.
struct DecisionQuestion {
  PlannerQuestion planner;  // its costs are the prices of the decision
  std::shared_ptr<const Placement> incumbent;
  std::deque<Window> windows;  // complete windows
  int64_t last_step = 0;       // last step that the decision covers
  Settings settings;
  int64_t staging_rows = 0;
  BoundaryLimits limits;
  MigrationOptions migration;
  Costs costs;
  PredictionRecord predictions = PredictionRecord();
  bool force = false;
};

struct DecisionAnswer {
  int64_t first_step = 0;            // first step of the windows that the decision covers
  double measured_balancedness = 0;  // balancedness of these windows; 0 if unknown
  absl::StatusOr<CandidateDecision> decision;
};

}  // namespace eplb::core
