// What a run left in its log directory.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_RUN_DIRECTORY_H_
#define EPLB_CLIENT_FILES_RUN_DIRECTORY_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/files/events_file.h"
#include "client/files/placement_file.h"
#include "client/files/run_report.h"
#include "placement/history.h"
#include "placement/load.h"

namespace eplb {

// The logs alone, of a run that may have died: what the validator needs.
struct RunLogs {
  std::vector<RankHistory> histories;       // rank-R.jsonl from rank 0 on, as many as there are
  std::vector<LoggedPlacement> placements;  // placements.jsonl
};

// errors, beginning with the file: NotFound without rank-0.jsonl or placements.jsonl;
// InvalidArgument when one is unreadable.
absl::StatusOr<RunLogs> ReadRunLogs(const std::string& directory);

// What the validator takes of placements.jsonl.
std::vector<PlacementRecord> RecordsOf(const std::vector<LoggedPlacement>& placements);

struct RunDirectory {
  std::vector<RankHistory> histories;       // rank-R.jsonl, by rank
  std::vector<LoggedPlacement> placements;  // placements.jsonl
  std::vector<Load> step_loads;             // loads.jsonl, [i] is step i
  RunReport report;                         // run.json
  std::optional<LoggedEvents> events;       // events.json, where there is one
};

// errors, beginning with the file: NotFound or InvalidArgument when one is missing or unreadable,
// ranks are not 0..R-1, or loads.jsonl does not have one line per step from step 0 on.
absl::StatusOr<RunDirectory> ReadRunDirectory(const std::string& directory);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_RUN_DIRECTORY_H_
