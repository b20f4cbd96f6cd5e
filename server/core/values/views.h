// Read-only views of a job.
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

// kAway: its stream ended, and it may come back. kLost: its stream was cut, and its run has ended.
enum class RankState { kExpected, kConnected, kAway, kFinished, kFailed, kLost };

// Answer of a rank to the proposal in flight. kFailed: the rank does not hold the proposal and
// never will.
enum class Answer { kNone, kPrepared, kApplied, kFailed };

struct RankView {
  int32_t rank = 0;
  int32_t gpu = 0;  // number in its EP group
  bool connected = false;
  int64_t running_version = 0;
  int64_t prepared_version = 0;
  int64_t step = 0;
  RankState state = RankState::kExpected;
  absl::Duration away;           // since the stream ended; zero when connected
  std::optional<Answer> answer;  // absent: no proposal is in flight
  // Propose to PREPARED, of the newest proposal that it was PREPARED for.
  std::optional<double> answer_seconds;
  std::optional<double> pause_seconds;  // time of the newest switch, from the vote on
  std::optional<double> step_seconds;   // mean of the newest load report that said it
  int64_t dropped_steps = 0;  // steps that it reported as dropped since its run began here
  std::string library_version;
  wire::TransportInfo transport;
};
// A run that gathers its ranks, or waits for the current one.
struct RunView {
  std::string run_id;
  int32_t world_size = 0;
  int32_t registered = 0;  // ranks that said Hello
  int32_t connected = 0;
  absl::Duration since;                            // its first rank came
  std::string waits;                               // for what, as a sentence
  absl::Duration deadline = absl::ZeroDuration();  // Config::gather_deadline
};
// A GPU that the ranks' step times show to be slow, or whose speed the settings name.
struct GpuSpeedView {
  int32_t gpu = 0;
  std::optional<double> measured_speed = std::nullopt;  // speed of a slow GPU; absent: not slow
  double speed_in_use = 1;                              // by the newest decision
  std::string source = {};  // source of the speed in use: measured, stated, avoided
  std::string reason = {};  // one sentence about a slow GPU
};
struct JobView {
  std::string job;
  std::string run_id;
  JobState state = JobState::kRecovering;
  absl::Duration state_age;
  std::string waiting_for;
  TopologyOptions shape;
  int32_t world_size = 0;
  int32_t connected_ranks = 0;
  int64_t step = 0;
  int64_t version = 0;
  Digest digest;
  // Measured: of the newest complete window whose placements are known, under those that its steps
  // ran under. Absent if not_measured_reason has a cause; a layer also if it has no tokens.
  std::optional<double> balancedness;
  std::vector<std::optional<double>> layer_balancedness;  // [num_layers]
  std::optional<double> balancedness_static;  // counterfactual: the same window, static placement
  // Counterfactual: the same window, one slot per expert.
  std::optional<double> balancedness_without_eplb;
  std::string not_measured_reason;  // one sentence; empty while `balancedness` is there
  std::string worse_reason;         // see WorseText
  SplitMode measured_split = SplitMode::kEqual;  // see Measured
  int64_t measured_first_step = 0;
  int64_t measured_last_step = 0;
  // Figures of the newest plan that switched anything: predicted by it, and measured after it.
  std::optional<double> balancedness_predicted;
  std::optional<double> balancedness_seen;
  std::optional<double> prediction_error;  // error of balancedness_predicted, see Plan, and
  std::optional<int64_t> prediction_evidence;
  std::vector<TriedCandidate> candidates;  // candidates of a policy that chooses, as they are now
  int64_t last_switched_step = 0;          // step of the newest switch; 0 = none is known
  std::optional<double> saved_seconds;     // see eplb_saved_seconds
  std::optional<double> spent_seconds;     // see eplb_spent_seconds; absent before a switch
  int64_t last_window_first_step = 0;
  int64_t last_window_last_step = 0;
  int64_t commits = 0;
  PredictionCounts prediction_counts;
  std::string last_reason;
  bool paused = false;
  bool paused_by_lost_store = false;
  std::string pause_reason;
  wire::Settings settings;         // current settings
  int32_t report_every = 0;        // steps in a window, as currently set
  std::string reduce;              // rank, root; empty before the first Hello
  std::string split;               // equal, batch; empty before the first Hello
  std::optional<double> coverage;  // share of reporters in the newest complete window
  std::vector<int32_t> model_layers;
  std::optional<RunEnding> ending;  // end of the newest run; absent while it lives
  std::string end_reason;           // one sentence; empty while it lives
  std::string took_over;            // see Run
  double stuck_seconds = 0;    // age of a state that is older than three times its deadline, else 0
  std::string stalled;         // why balancing has stopped, a name; empty: it has not
  std::string stalled_reason;  // one sentence; empty when it has not
  // NOT_COUNTING: the ranks or layers without tokens for kSilentIntervals, one sentence; empty:
  // none.
  std::string not_counting_reason;
  std::optional<double> step_seconds;  // measured time of a step
  // Share of reporters that sent the newest window that should be complete.
  std::optional<double> coverage_now;
  int64_t windows_given_up = 0;  // incomplete, since the daemon started
  std::vector<RankView> ranks;
  int64_t run_number = 0;  // number of the current run, rising within the job; 0: none yet
  int64_t term = 0;        // term with which this daemon leads the job
  std::optional<RunView> candidate;
  bool led_elsewhere = false;      // its end, as RunEnd
  bool take_over_refused = false;  // it waits because the steps of the current run advance
  std::string refusal;         // reason of the newest Hello that was refused in the last 10 minutes
  int64_t refused_hellos = 0;  // refused Hellos of this job since the daemon started
  std::vector<GpuSpeedView> gpu_speeds;  // rising
};

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
