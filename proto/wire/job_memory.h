// What no daemon may forget of a job, as plain values; JobMemory of proto/eplb/v1/types.proto says
// what each field means, names are the same.
#ifndef EPLB_PROTO_WIRE_JOB_MEMORY_H_
#define EPLB_PROTO_WIRE_JOB_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eplb::wire {

// The settings of a job that somebody gave; the others stay.
struct PolicyPatch {
  std::optional<std::string> policy_name;
  std::optional<std::string> mode;  // apply, observe
  std::optional<int32_t> every_steps;
  std::optional<double> min_gain;
  std::optional<int64_t> horizon_steps;
  std::optional<std::string> freeze_steps;  // "A:B", both included; "" = never
  std::optional<absl::Duration> max_pause;
  std::optional<int32_t> layers_per_chunk;

  bool empty() const { return *this == PolicyPatch(); }
  friend bool operator==(const PolicyPatch&, const PolicyPatch&) = default;
};

struct GoneLaunch {
  std::string incarnation;
  int64_t launch = 0;
  friend bool operator==(const GoneLaunch&, const GoneLaunch&) = default;
};
inline constexpr size_t kMaxGoneLaunches = 16;  // kept; older ones have lower launch numbers

struct JobMemory {
  int64_t term = 0;
  int64_t serial = 0;
  int64_t launch = 0;
  std::string incarnation = {};
  std::vector<GoneLaunch> gone = {};
  bool paused = false;
  std::string pause_reason = {};
  PolicyPatch settings = {};
  std::string quarantine = {};
  std::optional<int64_t> last_decision_step = std::nullopt;
  int32_t back_off_length = 0;
  int32_t back_off_to_skip = 0;
  int64_t account_windows = 0;
  double account_saved_peak_tokens = 0;
  double account_pause_seconds = 0;
  double record_spent_seconds = 0;
  double record_saved_tokens = 0;
  double record_start_tokens = 0;
  double report_seconds = 0;
  double gap_seconds = 0;
  int64_t next_version = 0;

  friend bool operator==(const JobMemory&, const JobMemory&) = default;
};

// A memory on its way through a rank. The daemon reads and writes `value`; a rank that speaks over
// the wire holds the bytes as they came, whatever version of the daemon wrote them.
struct CarriedMemory {
  std::string bytes = {};                         // empty: `value` says it
  std::optional<JobMemory> value = std::nullopt;  // none: there is none, or the bytes say nothing
};
inline constexpr size_t kMaxMemoryBytes = size_t{16} << 10;

// As the store and Keep have it: a serialized JobMemory of proto/eplb/v1/types.proto.
std::string MemoryBytes(const JobMemory& memory);
// errors: InvalidArgument, naming the field.
absl::StatusOr<JobMemory> MemoryFromBytes(const std::string& bytes);

}  // namespace eplb::wire

#endif  // EPLB_PROTO_WIRE_JOB_MEMORY_H_
