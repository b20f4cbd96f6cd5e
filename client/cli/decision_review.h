// The decisions of a recorded run: what each predicted and what followed.
#ifndef EPLB_CLIENT_CLI_DECISION_REVIEW_H_
#define EPLB_CLIENT_CLI_DECISION_REVIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/run_log/run_directory.h"
#include "placement/replay/run_figures.h"

namespace eplb::cli {

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

// placements: those of run.placements. errors: InvalidArgument if a switch has no placement in
// placements.jsonl, or steps lie outside the run.
absl::StatusOr<std::vector<RunDecision>> ReviewDecisions(
    const RunDirectory& run, const std::vector<RunPlacement>& placements);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DECISION_REVIEW_H_
