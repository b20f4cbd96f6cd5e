// Reads the log directory of a run.
#ifndef EPLB_CLIENT_RUN_LOG_RUN_DIRECTORY_H_
#define EPLB_CLIENT_RUN_LOG_RUN_DIRECTORY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/run_log/events_file.h"
#include "client/run_log/history.h"
#include "client/run_log/rank_log.h"
#include "client/run_log/run_report.h"
#include "placement/load.h"
#include "proto/wire/placement_files.h"

namespace eplb {

// Logs of a run that may have died, which the validator needs.
struct RunLogs {
  std::vector<RankHistory> histories;       // rank-R.jsonl from rank 0 on, as many as exist
  std::vector<LoggedPlacement> placements;  // placements.jsonl
};

// errors, beginning with the file: NotFound without rank-0.jsonl or placements.jsonl;
// InvalidArgument if one is unreadable.
absl::StatusOr<RunLogs> ReadRunLogs(const std::string& directory);

// Reads rank-R.jsonl from rank 0 on, as many as exist. errors, beginning with the file: NotFound
// without rank-0.jsonl; InvalidArgument naming line and key.
absl::StatusOr<std::vector<RankTimeline>> ReadTimelines(const std::string& directory);

// Returns the parts of placements.jsonl that the validator uses.
std::vector<PlacementRecord> RecordsOf(const std::vector<LoggedPlacement>& placements);

struct RunDirectory {
  std::vector<RankHistory> histories;       // rank-R.jsonl, by rank
  std::vector<LoggedPlacement> placements;  // placements.jsonl
  std::vector<Load> step_loads;             // loads.jsonl, [i] is step i
  RunReport report;                         // run.json
  std::optional<LoggedEvents> events;       // events.json, if it exists
};

// errors, beginning with the file: NotFound or InvalidArgument if one is missing or unreadable,
// ranks are not 0..R-1, or loads.jsonl does not have one line per step from step 0 on.
absl::StatusOr<RunDirectory> ReadRunDirectory(const std::string& directory);

}  // namespace eplb

#endif  // EPLB_CLIENT_RUN_LOG_RUN_DIRECTORY_H_
