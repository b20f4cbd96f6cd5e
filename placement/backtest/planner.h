// Planner of a job: feeds the job's windows to its back-test and returns the next decision when one
// is due. Policy `auto` has many candidates, every other policy is its own only one. The daemon and
// `eplbctl replay` decide by it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/backtest/backtest.h"
#include "placement/backtest/candidate.h"
#include "placement/decision/cost.h"
#include "placement/decision/rebalance.h"
#include "placement/gpu_speeds.h"
#include "placement/load_history.h"
#include "placement/placement.h"

namespace eplb {

// State that the planner keeps of a job from one question to the next. Threads: a value, not safe.
struct PlannerState {
  Backtest backtest;
  std::shared_ptr<const Placement> start;  // placement that the back-test began with
  int64_t windows_since_decision = -1;     // -1 before the first decision
  Costs costs = {};                        // newest priced costs, or the first ones before any
  LoadHistory history = {};                // all windows so far
};

struct PlannerQuestion {
  std::shared_ptr<const PlannerState> state;  // null: the back-test begins at the incumbent
  std::vector<SeenWindow> windows;            // newest windows, oldest first
  int64_t num_fresh = 0;                      // number of them that the state has not seen yet
  Costs costs;
  BacktestOptions options;
  std::shared_ptr<const GpuSpeeds> speeds = nullptr;  // see PolicyInput::speeds
  int64_t windows_since_decision = -1;  // fresh ones included; -1: no decision was made yet
  bool now = false;                     // decide even if no decision is due
  LoadHistory history = {};             // from which a null state goes on
};

struct PlannerAnswer {
  ExpectedLoad expected;  // load that the decision goes by
  Placement placement;    // aligned to the incumbent
  // Absent for a single candidate without prices: then min_gain decides alone.
  std::optional<LearnedGate> gate;
  Candidate candidate;  // candidate that computed the placement
};

struct PlannerOutcome {
  std::shared_ptr<const PlannerState> state;
  std::optional<PlannerAnswer> answer;  // absent if no decision is due, or there was no window yet
};

// incumbent: current placement, also during the fresh windows. Equal questions have equal answers.
// The back-test begins anew if the candidates, the split or the hierarchy change, and with the
// first prices, because until then it counts tokens. If prices disappear, the last ones stay.
// errors: those of Backtest::Advance and of the policy.
absl::StatusOr<PlannerOutcome> AskPlanner(const PlannerQuestion& question,
                                          const Placement& incumbent,
                                          const std::atomic<bool>* abandoned = nullptr);

// "back-test of 18 candidates over 24 windows: incremental on the last window, at every
// opportunity", to append to a reason. Empty for a single candidate and before the first score.
std::string BacktestText(const Backtest& backtest);

}  // namespace eplb
