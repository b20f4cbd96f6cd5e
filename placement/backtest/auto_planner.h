// The policy `auto`: which candidate is used for the job's next decision, as its back-test chose.
// The daemon and `eplbctl replay` decide by the same state.
#ifndef EPLB_PLACEMENT_BACKTEST_AUTO_PLANNER_H_
#define EPLB_PLACEMENT_BACKTEST_AUTO_PLANNER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/backtest/backtest.h"
#include "placement/backtest/candidate.h"
#include "placement/decision/cost.h"
#include "placement/decision/rebalance.h"
#include "placement/gpu_speeds.h"
#include "placement/placement.h"
#include "placement/policies/registry.h"

namespace eplb {

// What is known of a job between two decisions. Threads: a value, not safe.
struct AutoState {
  Backtest backtest;
  std::vector<SeenWindow> recent;       // oldest first, at most kEstimateWindows
  int64_t windows_since_decision = -1;  // -1: none was made yet
  Costs costs = {};                     // the newest that were priced
};

struct AutoRequest {
  std::span<const SeenWindow> fresh;  // windows since the request before, oldest first
  const Placement& incumbent;         // in force, also during the fresh windows
  const Costs& costs;
  PolicyOptions policy = {};          // of the decision; the back-test is always `fast`
  const GpuSpeeds* speeds = nullptr;  // as PolicyInput's, and
  const std::atomic<bool>* abandoned = nullptr;
  bool now = false;  // decide whether it is due or not
};

struct AutoAnswer {
  ExpectedLoad expected;  // what the decision goes by
  Placement placement;    // aligned to the incumbent
  LearnedGate gate;
  Candidate candidate;  // that was asked
};

// Takes over the fresh windows and decides when it is due: the candidate in use has waited for its
// cadence. Nothing: it is not due, or there was no window yet. errors: those of Backtest::Advance
// and of the policy; the state is then as far as it came.
absl::StatusOr<std::optional<AutoAnswer>> PlanAuto(const AutoRequest& request, AutoState& state);

// The same for a caller that hands the state in and takes it back: equal questions have equal
// answers. The back-test begins anew when `options` have another split or hierarchy than it has,
// and when there are prices for the first time: until then it counts tokens. Where there are none
// any more the last ones stay.
struct AutoQuestion {
  std::shared_ptr<const AutoState> state;  // null: the back-test begins at the placement in force
  std::vector<SeenWindow> fresh;           // as AutoRequest's, and the others
  Costs costs;
  BacktestOptions options;
  PolicyOptions policy = {};  // as AutoRequest's, and
  std::shared_ptr<const GpuSpeeds> speeds = nullptr;
  int64_t windows_since_decision = -1;  // with the fresh ones; -1: no decision was made yet
  bool now = false;
};
struct AutoOutcome {
  std::shared_ptr<const AutoState> state;
  std::optional<AutoAnswer> answer;  // none: not due
};
// errors: those of PlanAuto.
absl::StatusOr<AutoOutcome> AskAuto(const AutoQuestion& question, const Placement& incumbent,
                                    const std::atomic<bool>* abandoned = nullptr);

// "best of 18 candidates over 24 windows: incremental on the last window, at every opportunity, net
// 1.9 s; in use: ..": for reasons. Empty before the first score.
std::string BacktestText(const Backtest& backtest);

}  // namespace eplb

#endif  // EPLB_PLACEMENT_BACKTEST_AUTO_PLANNER_H_
