// Counters of a core since it was made, for the metrics. Sums only rise.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "proto/wire/messages.h"
#include "server/core/values/buckets.h"
#include "server/core/values/record.h"

namespace eplb::core {

// Ranks say how much is added, as often as they like: a sum ends at kMostSummed.
inline constexpr int64_t kMostSummed = int64_t{1} << 62;
// REQUIRES: both are in 0..kMostSummed.
inline void AddCapped(int64_t& sum, int64_t more) { sum += std::min(more, kMostSummed - sum); }

struct Counters {
  // By v1::PlanResult; [0] is not used. PROPOSED: those ever proposed, which are counted again
  // under what they became.
  std::array<int64_t, v1::PlanResult_ARRAYSIZE> plans{};
  int64_t prepared = 0;             // answers PREPARED to a proposal in flight
  int64_t applied = 0;              // ranks that reported a chunk as Applied
  std::array<int64_t, 8> nacks{};   // by wire::NackCode; [0] is not used
  std::array<int64_t, 4> failed{};  // by wire::FailedCode; [0] is not used
  int64_t transfers = 0;            // (layer, expert, GPU) copies of committed chunks
  int64_t received_bytes = 0;       // by ranks from other ranks, of committed chunks
  Buckets pause_seconds;            // pauses of switches, one per rank and chunk
  int64_t refused = 0;              // streams that the core ended because of what was said on them
  int64_t reports = 0;              // load reports that were looked at
  int64_t report_cells = 0;         // counts in them; 8 bytes each in memory
  int64_t dropped_steps = 0;        // steps whose counts ranks had to drop, as they reported
  int64_t reports_ahead = 0;        // left out: of steps far ahead of all other ranks
  int64_t windows = 0;              // completed
  int64_t windows_given_up = 0;     // incomplete
  int64_t windows_unmeasured = 0;   // complete, but a placement of their steps is not known
  Buckets prepare_seconds;          // Propose to the last PREPARED, of chunks that every rank held
  Buckets gate_wait_seconds;  // the last PREPARED to the first Applied, less that rank's switch
  int64_t changes = 0;        // changes by operators that were done
  int64_t changes_refused = 0;
  int64_t stuck = 0;            // states that became older than three times their deadline
  int64_t jobs_expired = 0;     // forgotten, or evicted by a new job
  int64_t stores_behind = 0;    // jobs whose ranks had seen later versions than the store
  int64_t events_left_out = 0;  // events that ranks caused above their job's budget
};

}  // namespace eplb::core
