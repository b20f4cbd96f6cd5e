// A decision as values: what it is made from and what it comes to, so that a solver's thread can
// make it while the state goes on.
#ifndef EPLB_SERVER_CORE_DECISIONS_QUESTION_H_
#define EPLB_SERVER_CORE_DECISIONS_QUESTION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/backtest/auto_planner.h"
#include "server/core/decisions/evaluate_candidate.h"
#include "server/core/state/windows.h"

namespace eplb::core {

// State of the job when its policy was asked. Fields without a comment: see CandidateInput.
struct DecisionQuestion {
  std::shared_ptr<const Load> load;
  // Windows that `load` is the sum of, oldest first, where the run splits each batch; else empty.
  std::vector<std::shared_ptr<const Load>> recent;
  int64_t first_step = 0;
  int64_t last_step = 0;
  double measured_balancedness = 0;
  std::shared_ptr<const Placement> incumbent;
  std::shared_ptr<const GpuSpeeds> speeds;
  SplitMode split = SplitMode::kEqual;
  std::deque<Window> windows;  // complete: the answer of a back-test goes by the newest of them
  Settings settings;
  int64_t staging_rows = 0;
  int64_t rows_per_chunk = 0;
  MigrationOptions migration;
  Costs costs;
  Costs prices;
  TrackRecord record;
  PredictionRecord predictions;
  double seconds_per_byte = 0;
  std::vector<MeasuredPause> measured;
  bool force = false;
};

struct DecisionAnswer {
  // First step of the windows that the decision covers, and their measured balancedness; 0 if
  // unknown.
  int64_t first_step = 0;
  double measured_balancedness = 0;
  absl::StatusOr<CandidateDecision> decision;
};

// candidate: what the policy answered, aligned to the incumbent. chosen: the back-test's answer,
// whose load takes the place of the question's; null of another policy.
// cost: that of EvaluateCandidate. threads: safe.
DecisionAnswer Decide(const DecisionQuestion& question, const Placement& candidate,
                      const AutoAnswer* chosen);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_DECISIONS_QUESTION_H_
