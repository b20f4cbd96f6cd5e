// What a run left in its log directory.
// threads: safe, no state.
#ifndef EPLB_CLIENT_RUN_LOG_RUN_DIRECTORY_H_
#define EPLB_CLIENT_RUN_LOG_RUN_DIRECTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/run_log/boundary_times.h"
#include "client/run_log/history.h"
#include "placement/evaluate.h"
#include "placement/load.h"
#include "proto/wire/placement_json.h"

namespace eplb {

// What operators and the daemon did to a job: `eplbctl get events -o json`, kept beside a run.
// threads: safe, no state.

// One line of the daemon's audit log.
struct LoggedEvent {
  int64_t sequence = 0;
  int64_t unix_micros = 0;  // the daemon's wall clock
  std::string name;         // committed, pause, set_policy, ..
  std::string reason;       // one sentence
  std::string actor;        // the operator who asked for it; empty: the daemon itself
  std::string before;       // of a change
  std::string after;
};

struct LoggedEvents {
  std::string job;
  std::vector<LoggedEvent> events;  // oldest first
};

// errors, beginning with the path: NotFound; InvalidArgument naming the key.
absl::StatusOr<LoggedEvents> ReadEventsFile(const std::string& path);

// The log that each rank keeps of what it did, for the validator of the protocol's promises.
// threads: safe, no state.

// JSON lines: {"event":"start|ready|vote|commit|drop|steps|stop","rank":R,"run_id":"..",
// "step":S, "last_step":T (steps), "version":V,"digest":"hex" (all but stop), "ok":bool (vote)};
// other keys, e.g. a reason, and lines of the event "boundary" are ignored. A last line that was
// cut off by a dying process is left out. errors, beginning with the path and naming the line:
// NotFound; InvalidArgument for any other line that is not such a record, another rank's record, or
// a file without one.
absl::StatusOr<RankHistory> ReadHistoryFile(const std::string& path);

// When a rank did what, as far as its log says: of every run in it.
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
  std::vector<TimedBoundary> boundaries;  // likewise
};

// Of rank-R.jsonl from rank 0 on, as many as there are. errors, beginning with the file: NotFound
// without rank-0.jsonl; InvalidArgument naming line and key.
absl::StatusOr<std::vector<RankTimeline>> ReadTimelines(const std::string& directory);

// What a run of the demonstration trainer did, as values and as JSON.
// threads: safe, no state.

// SwitchRecord::policy of a switch to a placement that an operator named.
inline constexpr char kRollbackPolicy[] = "rollback";

struct StepRecord {
  int64_t step = 0;
  int64_t version = 0;
  // Mean over layers with load of mean / max GPU load, from what each rank measured. None for a
  // step without tokens.
  std::optional<double> balancedness;
  std::optional<double> balancedness_static;  // the same for the layout that never moves
  // The same with one slot per expert, and the tokens of the layers' fullest GPUs, summed over
  // layers, as the step ran and with one slot per expert. None in runs of older trainers.
  std::optional<double> balancedness_without_eplb;
  std::optional<double> peak_tokens;
  std::optional<double> peak_tokens_without_eplb;
  // Rank 0's wall clock.
  double began = 0;             // since RunReport::began_at
  double seconds = 0;           // of the step with its boundary, without the checks after a switch
  double boundary_seconds = 0;  // of them in StepBoundary
  double work_seconds = 0;      // of them before the step waited for its expected end
};

// One committed chunk. Bytes are summed over ranks, the pause is the longest of any rank.
struct SwitchRecord {
  int64_t step = 0;  // the boundary; the next step is the first under `version`
  int64_t version = 0;
  int64_t decided_first_step = 0;  // steps whose load the daemon decided on
  int64_t decided_last_step = 0;
  int64_t decision = 0;  // the daemon's number; chunks of a decision share it; 0: not known
  std::string policy;    // that decided; "rollback" when an operator named the placement
  std::string asked_by;  // the operator who asked for it; empty: nobody
  std::string reason;
  int64_t bytes_moved = 0;  // between ranks
  double pause_seconds = 0;
  int64_t bytes_verified = 0;  // right after the switch
};

struct RunReport {
  std::string job;
  std::string run_id;
  int32_t world_size = 0;
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  int32_t num_slots = 0;
  std::string transport;
  // How replicas shared tokens; with kBatch each step was one batch. In JSON "equal" or "batch".
  SplitMode split = SplitMode::kEqual;
  int64_t steps_asked = 0;
  double began_at = 0;  // wall clock, seconds since 1970; 0: not known
  // Of a step whose GPUs have equal loads; one whose GPUs have not lasts that times the loads of
  // the layers' fullest GPUs / the mean loads. 0: steps do not last in proportion to their load.
  double even_step_seconds = 0;
  std::vector<StepRecord> steps;
  std::vector<SwitchRecord> switches;
  int64_t bytes_verified = 0;          // all ranks, all verifications
  double boundary_seconds = 0;         // rank 0's time in all boundaries
  int64_t session_waits_over_1ms = 0;  // of all ranks' training threads for the session's lock
  std::string error;                   // why the run ended early; empty when it did not
};

// Keys: format "eplb.run.v1", the fields above, and summary {balancedness_mean,
// balancedness_without_eplb_mean, balancedness_static_mean, time_saved,
// balancedness_mean_after_first_switch, balancedness_static_mean_after_first_switch, rebalances,
// switches, bytes_moved, pause_seconds_max}. time_saved is 1 - peak_tokens /
// peak_tokens_without_eplb, both summed over the steps. A figure without a sample is null. A
// rebalance is one decision of the daemon's policy, applied in one or more switches; a rollback is
// none.
std::string RunReportToJson(const RunReport& report);
// Only what RunReportToJson writes. errors, beginning with the path: NotFound; InvalidArgument
// naming the key.
absl::StatusOr<RunReport> ReadRunReport(const std::string& path);
// errors: as WriteFileAtomically.
absl::Status WriteRunReport(const RunReport& report, const std::string& path);

// `switches` by decision, in order: by its number, or where that is not known by what was decided
// on.
std::vector<std::vector<SwitchRecord>> ByDecision(const std::vector<SwitchRecord>& switches);

// Distinct decisions of a policy among the switches.
int64_t CountRebalances(const std::vector<SwitchRecord>& switches);

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

#endif  // EPLB_CLIENT_RUN_LOG_RUN_DIRECTORY_H_
