// Reads the log that each rank keeps of its run: records for the validator of the protocol's
// promises, and times for traces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/run_log/boundary_times.h"
#include "client/run_log/history.h"
#include "placement/ids.h"

namespace eplb {

// JSON lines: {"event":"start|ready|vote|commit|drop|steps|stop","rank":R,"run_id":"..",
// "step":S, "last_step":T (steps), "version":V,"digest":"hex" (all but stop), "ok":bool (vote)};
// other keys, e.g. a reason, and lines of the event "boundary" are ignored. A last line that was
// cut off by a dying process is ignored. errors, beginning with the path and naming the line:
// NotFound; InvalidArgument for any other line that is not such a record, another rank's record, or
// a file without a record.
absl::StatusOr<RankHistory> ReadHistoryFile(const std::string& path);

// Times in a rank's log, of every run in it.
struct TimedPrepared {
  std::string run_id;
  int64_t version = 0;
  int64_t unix_micros = 0;  // the rank became PREPARED
};
struct TimedBoundary {
  std::string run_id;
  BoundaryTimes times;
};
struct RankTimeline {
  RankId rank;
  std::vector<TimedPrepared> prepared;    // in log order
  std::vector<TimedBoundary> boundaries;  // in log order
};

// Reads the times in the log of `rank`. errors, beginning with the path: NotFound; InvalidArgument
// naming line and key.
absl::StatusOr<RankTimeline> ReadTimelineFile(const std::string& path, RankId rank);

}  // namespace eplb
