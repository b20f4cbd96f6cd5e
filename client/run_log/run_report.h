// Summary of a run of the demonstration trainer, as values and as JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/evaluate.h"
#include "proto/wire/messages.h"

#include <nlohmann/json_fwd.hpp>

namespace eplb {

using wire::kRollbackPolicy;  // in SwitchRecord::policy

struct StepRecord {
  int64_t step = 0;
  int64_t version = 0;
  // Mean over layers with load of mean / max GPU load, as the ranks measured it. None for a step
  // without tokens.
  std::optional<double> balancedness;
  std::optional<double> balancedness_static;  // balancedness under the layout that never moves
  // Balancedness with one slot per expert; tokens of the layers' fullest GPUs, summed over layers,
  // as the step ran and with one slot per expert. None in runs of older trainers.
  std::optional<double> balancedness_without_eplb;
  std::optional<double> peak_tokens;
  std::optional<double> peak_tokens_without_eplb;
  // Rank 0's wall clock.
  double began = 0;             // since RunReport::began_at
  double seconds = 0;           // step with its boundary, without the checks after a switch
  double boundary_seconds = 0;  // part of `seconds` in StepBoundary
  double work_seconds = 0;      // part of `seconds` before the step waited for its expected end
};

// One committed chunk. Bytes are summed over ranks, the pause is the longest of any rank from the
// vote to the commit; trainers of 0.1.0 wrote that of the whole boundary.
struct SwitchRecord {
  int64_t step = 0;  // the boundary; the next step is the first under `version`
  int64_t version = 0;
  int64_t decided_first_step = 0;  // steps that the decision covers
  int64_t decided_last_step = 0;
  int64_t decision = 0;  // number of the decision, which its chunks share; 0: not known
  std::string policy;    // policy that decided; "rollback" if an operator named the placement
  std::string asked_by;  // operator who asked for the switch; empty: none
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
  // Seconds of a step whose GPUs have equal loads. A step with other loads lasts this times the
  // loads of the layers' fullest GPUs / the mean loads. 0: steps do not last in proportion to their
  // load.
  double even_step_seconds = 0;
  std::vector<StepRecord> steps;
  std::vector<SwitchRecord> switches;
  int64_t bytes_verified = 0;          // all ranks, all verifications
  double boundary_seconds = 0;         // rank 0's time in all boundaries
  int64_t session_waits_over_1ms = 0;  // waits of training threads for the session's lock
  std::string error;                   // why the run ended early; empty if it did not
};

// Returns JSON with the keys: format "eplb.run.v1", the fields above, and summary
// {balancedness_mean, balancedness_without_eplb_mean, balancedness_static_mean, time_saved,
// balancedness_mean_after_first_switch, balancedness_static_mean_after_first_switch, rebalances,
// switches, bytes_moved, pause_seconds_max}. time_saved is 1 - peak_tokens /
// peak_tokens_without_eplb, both summed over the steps. A figure without a sample is null. A
// rebalance is one decision of the daemon's policy, applied in one or more switches; a rollback is
// none.
std::string RunReportToJson(const RunReport& report);
// Its array "switches", with the fields of SwitchRecord as keys.
nlohmann::ordered_json SwitchesToJson(const std::vector<SwitchRecord>& switches);
// Reads the output of RunReportToJson. errors, beginning with the path: NotFound; InvalidArgument
// naming the key.
absl::StatusOr<RunReport> ReadRunReport(const std::string& path);
// errors: see WriteFileAtomically.
absl::Status WriteRunReport(const RunReport& report, const std::string& path);

// Groups `switches` by decision, in order: by its number or, if that is not known, by the steps
// that it covers.
std::vector<std::vector<SwitchRecord>> ByDecision(const std::vector<SwitchRecord>& switches);

// Returns the number of distinct decisions of a policy among the switches.
int64_t CountRebalances(const std::vector<SwitchRecord>& switches);

}  // namespace eplb
