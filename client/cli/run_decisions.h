// The decisions of a recorded run: what each promised and what followed.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_RUN_DECISIONS_H_
#define EPLB_CLIENT_CLI_RUN_DECISIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/files/run_directory.h"
#include "placement/replay/run_figures.h"

namespace eplb::cli {

// Balancedness: of the summed load of the steps it is told of, mean over layers with load.
struct RunDecision {
  int64_t decision = 0;  // the daemon's number; 0: not known
  std::string policy;    // "rollback" when an operator named the placement
  std::string asked_by;  // the operator who asked for it; empty: nobody
  std::string reason;
  int64_t decided_first_step = 0;
  int64_t decided_last_step = -1;     // below the first: on no steps
  std::vector<int64_t> switch_steps;  // its chunks were in force after these
  int64_t bytes_moved = 0;            // between ranks
  double pause_seconds = 0;           // longest boundary of any rank
  double before = 1;                  // measured on the steps that it was decided on
  double predicted = 1;               // of its last placement, on their load
  // Measured from its last switch to the next decision's first, or to the end; absent: no step.
  std::optional<double> until_next;
  int64_t until_next_first_step = 0;
  int64_t until_next_last_step = -1;
};

// placements: of run.placements. errors: InvalidArgument when a switch has no placement in
// placements.jsonl, or steps lie outside the run.
absl::StatusOr<std::vector<RunDecision>> ReviewDecisions(
    const RunDirectory& run, const std::vector<RunPlacement>& placements);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_RUN_DECISIONS_H_
