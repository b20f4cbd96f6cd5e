// Values that the core shows beside the messages of its jobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

#include "placement/digest.h"
#include "placement/load.h"
#include "placement/topology.h"
#include "proto/wire/messages.h"
#include "proto/wire/settings.h"
#include "server/core/values/counters.h"
#include "server/core/values/measured.h"
#include "server/core/values/record.h"

namespace eplb::core {

// Answer of a rank to the proposal in flight. kFailed: the rank does not hold the proposal and
// never will.
enum class Answer { kNone, kPrepared, kApplied, kFailed };

// How this daemon leads a run.
struct LeaderView {
  int64_t term = 0;
  int32_t connected_ranks = 0;
  int32_t world_size = 0;
};

// Ranks of a job that were refused before the daemon knew the job.
struct RefusedJob {
  std::string job;
  std::string reason;  // reason of the newest one
  int64_t count = 0;
  absl::Time at;  // the newest
};

struct WindowView {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::shared_ptr<const Load> load;
  // Null: a placement of them is not known, or the run splits each batch.
  std::shared_ptr<const GpuTokens> on_gpus = nullptr;
};

// A complete window, as it is kept to be looked back at.
struct PastWindow {
  std::string run_id;
  TopologyOptions shape;
  int64_t first_step = 0;
  int64_t last_step = 0;
  double coverage = 0;                       // share of reporters in the sum
  std::optional<double> step_seconds;        // measured time of a step
  std::shared_ptr<const Load> load;          // [L, E]
  std::shared_ptr<const GpuTokens> on_gpus;  // in equal shares; null: a placement is not known
  SplitMode split = SplitMode::kEqual;       // mode that the run registered
  std::optional<Measured> measured = std::nullopt;  // absent if it could not be measured
};

// A window as a store keeps it: its figures, some 200 bytes, and never its loads.
struct StoredWindow {
  std::string job;
  v1::Window figures;
};

inline constexpr size_t kMaxPastWindows = 4096;  // figures kept of a job, in memory and in a store
inline constexpr size_t kMaxPastWindowsOfAll = size_t{1} << 16;  // 65,536 * 400 B = 26 MB

}  // namespace eplb::core
