// Reads the log directory of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/run_log/history.h"
#include "client/run_log/rank_log.h"
#include "client/run_log/run_report.h"
#include "placement/load.h"
#include "proto/wire/placement_files.h"

namespace eplb {

// Logs of a run that may have died, which the validator needs.
struct RunLogs {
  std::vector<RankHistory> histories;       // rank-R.jsonl, by rank
  std::vector<LoggedPlacement> placements;  // placements.jsonl
  bool has_report = false;                  // run.json, which has the number of ranks
};

// Reads the logs of all ranks of run.json; without it, of those up to the highest one with a log.
// errors, beginning with the file: NotFound if one of these or placements.jsonl is missing;
// InvalidArgument if one is unreadable.
absl::StatusOr<RunLogs> ReadRunLogs(const std::string& directory);

// Reads rank-R.jsonl up to the highest rank that has one. errors, beginning with the file: NotFound
// if one is missing; InvalidArgument naming line and key.
absl::StatusOr<std::vector<RankTimeline>> ReadTimelines(const std::string& directory);

// Returns the parts of placements.jsonl that the validator uses.
std::vector<PlacementRecord> RecordsOf(const std::vector<LoggedPlacement>& placements);

// One line of the daemon's audit log.
struct LoggedEvent {
  int64_t sequence = 0;
  int64_t unix_micros = 0;  // the daemon's wall clock
  std::string name;         // committed, pause, set_policy, ..
  std::string reason;       // one sentence
  std::string actor;        // operator who asked for it; empty: the daemon itself
  std::string before;       // value before a change
  std::string after;
};

struct LoggedEvents {
  std::string job;
  std::vector<LoggedEvent> events;  // oldest first
};

// Reads the audit log of `job`. errors, beginning with the path: NotFound; InvalidArgument naming
// the key, or the other job whose log it is.
absl::StatusOr<LoggedEvents> ReadEventsFile(const std::string& path, const std::string& job);

// The time that the run's job saved, as its daemon knew in the end; over all runs of the job.
struct LoggedAccount {
  std::string run_id;
  std::optional<double> saved_seconds;
  std::optional<double> spent_seconds;
  std::string saved_basis;
  bool saved_is_assumed = false;
};

struct RunDirectory {
  std::vector<RankHistory> histories;       // rank-R.jsonl, by rank
  std::vector<LoggedPlacement> placements;  // placements.jsonl
  std::vector<Load> step_loads;             // loads.jsonl, [i] is step i
  RunReport report;                         // run.json
  std::optional<LoggedEvents> events;       // events.json, if it exists
  std::optional<LoggedAccount> account;     // job.json, if it exists and is not empty
};

// errors, beginning with the file: NotFound or InvalidArgument if one is missing or unreadable,
// ranks are not 0..R-1, or loads.jsonl does not have one line per step from step 0 on;
// InvalidArgument if loads.jsonl or placements.jsonl lacks what another file refers to.
absl::StatusOr<RunDirectory> ReadRunDirectory(const std::string& directory);

}  // namespace eplb
