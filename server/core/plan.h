// One decision of a job and what became of it.
#ifndef EPLB_SERVER_CORE_PLAN_H_
#define EPLB_SERVER_CORE_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace eplb::core {

enum class PlanResult {
  kKept,       // the placement in force was better, or good enough
  kObserved,   // would have been proposed, but the job is only observed
  kProposed,   // in flight
  kCommitted,  // every chunk
  kWithdrawn,  // no chunk
  kPartial,    // the first chunks
  kFailed,     // the policy gave no usable placement
};
inline constexpr int kNumPlanResults = 7;

std::string_view PlanResultName(PlanResult result);  // "kept", ..
std::optional<PlanResult> PlanResultOf(std::string_view name);

// Bytes and seconds of a switch that nobody told this daemon: it was not there, or a rank came back
// later and said only what it runs.
inline constexpr int kNotMeasured = -1;

struct Plan {
  int64_t plan = 0;  // rising within a job, from 1
  absl::Time decided_at = absl::UnixEpoch();
  std::string policy;
  PlanResult result = PlanResult::kKept;
  int64_t base_version = 0;        // in force when it was decided
  int64_t first_version = 0;       // of its chunks; 0 when nothing was proposed
  int64_t last_version = 0;        // committed; 0 when none was
  int64_t decided_first_step = 0;  // the steps whose load was decided on
  int64_t decided_last_step = 0;
  // Measured: of those steps, under the placements that they ran under; 0 when that is not known.
  double balancedness_before = 0;
  double balancedness_in_force = 0;   // computed: of base_version on that load
  double balancedness_predicted = 0;  // computed: of what the policy may change, on that load
  // Measured: of the first complete window all of whose steps ran under last_version, what was
  // predicted beside what followed. None before it, or when another decision switched before it.
  std::optional<double> balancedness_seen = std::nullopt;
  int64_t seen_first_step = 0;
  int64_t seen_last_step = 0;
  double peak_fall = 0;          // predicted, of the sum of the layers' peak loads, a fraction
  double net_gain_seconds = 0;   // over the horizon; 0 without costs
  double migration_seconds = 0;  // predicted; 0 without costs
  int64_t transfers = 0;         // proposed
  int64_t received_bytes = 0;    // by all ranks, or kNotMeasured
  int32_t num_chunks = 0;
  int32_t chunks_committed = 0;
  double solve_seconds = 0;
  double prepare_seconds = 0;  // Propose to the last READY, longest chunk
  double pause_seconds = 0;    // longest boundary of any rank, or kNotMeasured
  int64_t switched_step = 0;   // of the last chunk; 0 when none was
  std::string reason;          // one sentence
  std::string asked_by;        // an identity, when an operator asked for it

  friend bool operator==(const Plan&, const Plan&) = default;
};

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_PLAN_H_
