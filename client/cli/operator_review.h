// The operators' changes to a job during a recorded run, by its steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/run_log/run_directory.h"

namespace eplb::cli {

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

}  // namespace eplb::cli
