// Everything that can be checked and computed again about a recorded run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/run_log/run_directory.h"
#include "placement/evaluate.h"

namespace eplb::cli {

// An operator's change to a job during a recorded run.
struct OperatorAction {
  int64_t step = -1;  // the newest that had begun; -1: before the first
  std::string name;   // pause, resume, rollback, rebalance, set_policy
  std::string actor;
  std::string reason;  // one sentence
  std::string before;  // state before a change
  std::string after;
};

// Steps in which no decision of the daemon could take effect.
struct HeldBack {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::string why;  // "paused", "observed only"
};

struct OperatorReview {
  std::vector<OperatorAction> actions;  // in order
  std::vector<HeldBack> held_back;      // rising, none touches the next
  std::vector<bool> decided;            // [steps]: false in those held back
};

// Without events, there is no action and every step is decided. The daemon's clock places an event
// between two steps of rank 0's clock. Refused changes and changes before the run began or after it
// ended are left out; a pause or mode that was active when the run began counts.
OperatorReview ReviewOperators(const RunReport& report, const std::optional<LoggedEvents>& events);

// The run under one way to place its experts. Only the run's own row is measured; the others are
// what its loads and its steps give under their placements.
struct RunRow {
  double peak_tokens = 0;  // tokens of the layers' fullest GPUs, summed over all steps
  // Over the compared steps.
  std::optional<double> balancedness;  // mean over steps with tokens; none without such a step
  std::optional<double> slowdown;      // see RunSeries; absent without such a step
  double step_seconds = 0;             // mean time of a step without its boundary; 0: not known
  double total_seconds = 0;            // over all steps, without boundaries; 0: not known
  int64_t transfers = 0;
  std::optional<int64_t>
      bytes;  // between ranks; absent: the run moved nothing to tell a price from
};

// Rank 0's wall clock over all steps, checks after a switch left out.
struct RunTime {
  double measured_seconds = 0;       // boundaries included
  double boundary_seconds = 0;       // part of it in StepBoundary
  double switch_seconds = 0;         // part of it in the boundaries that switched
  double longest_pause_seconds = 0;  // longest pause of any rank in one boundary
  // Steps last in proportion to the load of their fullest GPUs: what they would have lasted under
  // another placement can be told.
  bool modelled = false;
  int64_t steps_over_model = 0;  // steps that took longer because the machine was too slow
};

// A decision of the run: what it predicted and what followed.
// Balancedness figures are those of the summed load of their steps, mean over layers with load; in
// a run that split each step exactly, they compare with the fullest GPU of each step.
struct RunDecision {
  int64_t decision = 0;  // the daemon's number; 0: not known
  std::string policy;    // "rollback" if an operator named the placement
  std::string asked_by;  // the operator who asked for it; empty: the policy
  std::string reason;
  int64_t decided_first_step = 0;
  int64_t decided_last_step = -1;     // below the first: no steps
  std::vector<int64_t> switch_steps;  // its chunks took effect after these
  int64_t bytes_moved = 0;            // between ranks
  double pause_seconds = 0;           // longest boundary of any rank
  // Measured on the steps that the decision covers; absent without tokens.
  std::optional<double> before;
  std::optional<double> computed;  // for its last placement on their load; absent likewise
  // Measured from its last switch to the next decision's first, or to the end; absent: no step.
  std::optional<double> until_next;
  int64_t until_next_first_step = 0;
  int64_t until_next_last_step = -1;
};

struct RunReview {
  std::vector<std::string>
      problems;  // broken invariants, figures that differ, unverified bytes; empty: all holds
  int64_t steps = 0;
  int64_t rebalances = 0;
  int64_t first_switch_step = -1;  // first step under a second placement; -1: never
  double largest_difference = 0;   // between reported and recomputed balancedness of a step
  // Compared are the steps from the first switch on (from step 0 when there was none), but for
  // those in which operators held decisions back. Where that would leave none, they stay.
  int64_t compared_first_step = 0;
  int64_t compared_steps = 0;
  RunRow run;
  RunRow without_eplb;  // one slot per expert: what savings count against
  RunRow unmoved;       // static layout, equal shares
  RunRow policy;        // policy deepseek on the same decision windows and switch steps, and
  RunRow hindsight;     // planned for each window of steps on that very window; equal shares
  // Only for a run that split each step exactly: its own placements with equal shares, and the best
  // policy for exact splits planned for each window on that very window.
  SplitMode split = SplitMode::kEqual;
  RunRow equal_shares;
  RunRow hindsight_split;
  int64_t window_steps = 0;  // steps in a window of hindsight
  RunTime time;
  std::vector<RunDecision> decisions;
  OperatorReview operators;
  // GPU loads, tokens summed over the steps after the first switch, of the layer that the static
  // layout balances worst.
  int32_t worst_layer = 0;
  std::vector<double> gpu_loads_unmoved;  // [G]
  std::vector<double> gpu_loads_run;      // [G]

  // Share of the time without EPLB that the experts of all steps took less; none without tokens.
  std::optional<double> time_saved() const {
    if (!(without_eplb.peak_tokens > 0)) return std::nullopt;
    return 1 - run.peak_tokens / without_eplb.peak_tokens;
  }

  // True if the comparison leaves out steps in which operators held decisions back.
  bool leaves_steps_out() const { return compared_steps < steps - compared_first_step; }
};

// A figure that differs by more than this from what the run reported is a problem.
inline constexpr double kBalancednessTolerance = 1e-9;

// window_steps >= 1: the report window of the run. errors: InvalidArgument when the files
// contradict each other so that no figure can be computed.
absl::StatusOr<RunReview> ReviewRun(const RunDirectory& run, int64_t window_steps);

}  // namespace eplb::cli
