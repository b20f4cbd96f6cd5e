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

// A figure whose zero means that there was no sample.
inline std::optional<double> AboveZero(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}

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

// Figures of one window. balancedness*: means over layers with load; none: a placement is not
// known. Where the job uses GPU speeds other than 1, they are of tokens / speed, as Measure says.
struct WindowFigures {
  int64_t window = 0;  // rises over all jobs of this daemon, from 1, also across its restarts
  absl::Time completed_at;
  std::string run_id;
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::vector<int64_t> versions;  // versions that its steps ran under, rising; empty: not known
  double coverage = 0;
  std::optional<double> step_seconds;               // absent: not known yet
  int64_t tokens = 0;                               // tokens of all layers; 2^63-1 for a larger sum
  SplitMode split = SplitMode::kEqual;              // mode of `balancedness`
  std::optional<double> balancedness;               // measured
  std::optional<double> balancedness_equal;         // computed: equal shares, the same placements
  std::optional<double> balancedness_static;        // counterfactual: equal shares, static layout
  std::optional<double> balancedness_without_eplb;  // counterfactual: one slot per expert
  bool has_loads = false;                           // its loads are in memory still; not stored

  friend bool operator==(const WindowFigures&, const WindowFigures&) = default;
};

// A window as a store keeps it: its figures, some 200 bytes, and never its loads.
struct StoredWindow {
  std::string job;
  WindowFigures figures;

  friend bool operator==(const StoredWindow&, const StoredWindow&) = default;
};

inline constexpr size_t kMaxPastWindows = 4096;  // figures kept of a job, in memory and in a store
inline constexpr size_t kMaxPastWindowsOfAll = size_t{1} << 16;  // 65,536 * 400 B = 26 MB

}  // namespace eplb::core
