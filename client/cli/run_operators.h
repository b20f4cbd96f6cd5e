// What operators did to a job while a recorded run ran, by its steps.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_RUN_OPERATORS_H_
#define EPLB_CLIENT_CLI_RUN_OPERATORS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/files/events_file.h"
#include "client/files/run_report.h"

namespace eplb::cli {

struct OperatorAction {
  int64_t step = -1;  // the newest that had begun; -1: before the first
  std::string name;   // pause, resume, rollback, rebalance, set_policy
  std::string actor;
  std::string reason;  // one sentence
  std::string before;  // of a change
  std::string after;
};

// Steps in which no decision of the daemon could be put in force.
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

// Without events nothing is known: no action, every step decided. The daemon's clock places an
// event between two steps of rank 0's clock. Refused changes are left out, as is what was done
// before the run began and after it ended, but for a pause or mode that was in force when it began.
OperatorReview ReviewOperators(const RunReport& report, const std::optional<LoggedEvents>& events);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_RUN_OPERATORS_H_
