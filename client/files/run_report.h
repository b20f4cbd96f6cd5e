// What a run of the demonstration trainer did, as values and as JSON.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_RUN_REPORT_H_
#define EPLB_CLIENT_FILES_RUN_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

struct StepRecord {
  int64_t step = 0;
  int64_t version = 0;
  double balancedness = 1;  // mean over layers of mean / max GPU load, from what each rank measured
  double balancedness_static = 1;  // the same for the layout that never moves
  double seconds = 0;              // of the step with its boundary, wall clock
};

// One committed chunk. Bytes are summed over ranks, the pause is the longest of any rank.
struct SwitchRecord {
  int64_t step = 0;  // the boundary; the next step is the first under `version`
  int64_t version = 0;
  int64_t decided_first_step = 0;  // steps whose load the daemon decided on
  int64_t decided_last_step = 0;
  std::string reason;
  int64_t bytes_moved = 0;  // between ranks
  double pause_seconds = 0;
  int64_t bytes_verified = 0;  // right after the switch
};

struct RunReport {
  std::string job;
  std::string incarnation;
  int32_t world_size = 0;
  int32_t num_layers = 0;
  int32_t num_experts = 0;
  int32_t num_slots = 0;
  std::string transport;
  int64_t steps_asked = 0;
  std::vector<StepRecord> steps;
  std::vector<SwitchRecord> switches;
  int64_t bytes_verified = 0;          // all ranks, all verifications
  double boundary_seconds = 0;         // rank 0's time in all boundaries
  int64_t session_waits_over_1ms = 0;  // of all ranks' training threads for the session's lock
  std::string error;                   // why the run ended early; empty when it did not
};

// Keys: format "eplb.run.v1", the fields above, and summary {balancedness_mean,
// balancedness_static_mean, balancedness_mean_after_first_switch,
// balancedness_static_mean_after_first_switch, rebalances, switches, bytes_moved,
// pause_seconds_max}. A rebalance is one decision of the daemon, applied in one or more switches.
std::string RunReportToJson(const RunReport& report);
// Only what RunReportToJson writes. errors, beginning with the path: NotFound; InvalidArgument
// naming the key.
absl::StatusOr<RunReport> ReadRunReport(const std::string& path);
// errors: as WriteFileAtomically.
absl::Status WriteRunReport(const RunReport& report, const std::string& path);

// Distinct decisions among the switches.
int64_t CountRebalances(const std::vector<SwitchRecord>& switches);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_RUN_REPORT_H_
