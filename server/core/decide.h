// Whether a rebalance pays, and why, as a sentence.
#ifndef EPLB_SERVER_CORE_DECIDE_H_
#define EPLB_SERVER_CORE_DECIDE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/cost.h"
#include "placement/load.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"
#include "placement/track_record.h"
#include "server/core/turn.h"

namespace eplb::core {

struct Question {
  const Load& load;  // summed over the steps [first_step, last_step]
  int64_t first_step = 0;
  int64_t last_step = 0;
  const Placement& incumbent;
  const Placement& candidate;  // aligned to `incumbent`
  double min_gain = 0;         // least fall of the predicted peak load, as a fraction of it
  int32_t layers_per_chunk = 1;
  int64_t staging_rows = 0;  // of the rank that has fewest
  MigrationOptions migration;
  Costs costs;                          // but for the bytes of an expert, which `migration` has
  const TrackRecord* record = nullptr;  // needed when the costs are priced
  int32_t every_steps = 1;              // between decisions
};

struct Verdict {
  std::vector<Chunk> chunks;  // empty: keep the incumbent
  std::string reason;
  std::string left_out;  // which layers need more staging than the ranks have; empty when none
  double migration_seconds = 0;  // what the chunks cost, where that is known
};

// JudgeRebalance and, with prices, JudgeReturn. Layers that need more rows of staging on a GPU than
// the ranks have keep their slots.
// errors: InvalidArgument when load and placements differ in shape.
absl::StatusOr<Verdict> Judge(const Question& question);

// After a window completed: adds it to the job's record, when the costs are priced.
void WatchWindow(const State& state, Job& job);
// Then: asks for a solution when it is time to decide. Does nothing outside
// IDLE, in the freeze, while a rank is not connected, and while the daemon drains.
void MaybeSolve(Turn& turn, Job& job);
void HandleSolved(Turn& turn, const Solved& solved);
// Forgets the solution that is being computed; IDLE.
void AbandonSolve(Turn& turn, Job& job, const std::string& reason);

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_DECIDE_H_
