// A recorded trace decided on as the daemon would have: windows in, decisions out, no peeking.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "placement/backtest/backtest.h"
#include "placement/backtest/switch_time.h"
#include "placement/backtest/switching.h"
#include "placement/decision/cost.h"
#include "placement/decision/prediction.h"
#include "placement/decision/rebalance.h"
#include "placement/evaluate.h"
#include "placement/load.h"
#include "placement/placement.h"
#include "placement/policies/registry.h"
#include "placement/policy.h"
#include "placement/topology.h"

namespace eplb {

// The most that `every`, `history` and `horizon_windows` may be: numbers of windows, of 32 bits.
inline constexpr int64_t kMaxReplayWindows = (int64_t{1} << 31) - 1;

struct ReplayOptions {
  int64_t every = 1;    // windows between decisions, >= 1
  int64_t history = 1;  // windows that a decision looks at, >= 1
  // Absent: windows are summed. Otherwise estimate = decay * estimate + (1 - decay) * window,
  // oldest first.
  std::optional<double> decay;
  double min_gain = 0.01;
  SwitchTime switch_time = {};
  // Split in measurements, in the policy's objective and in decisions; each window is one batch.
  SplitMode split = SplitMode::kEqual;
  PolicyOptions policy;         // options of the policy, or of the candidates of one that chooses
  Costs costs;                  // horizon_steps is not looked at, but
  int64_t horizon_windows = 0;  // 0: not known
};

// Step numbers of a window, both included.
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;

  int64_t count() const { return last - first + 1; }
};

// Steps of a window where nothing says them.
inline constexpr int64_t kUsualWindowSteps = 50;

struct ReplayTrace {
  std::span<const Load> windows;     // oldest first, of one shape
  std::span<const StepRange> steps;  // one per window
};

// Returns the switching time of a job with the defaults of client library and daemon. Its proposals
// arrive one step after a window, and its bytes take as long as the links say.
SwitchTime UsualSwitchTime(const Topology& topology, const Costs& costs);

// Window t, and the decision just before it.
struct ReplayRow {
  // Means over steps and over layers with load; none for a window without tokens.
  std::optional<double> balancedness_without_eplb;  // placement/without_eplb.h
  std::optional<double> balancedness_static;        // under the starting layout
  std::optional<double> balancedness;               // under the placements that ran
  // Sums over layers of the fullest GPU's load, without EPLB and under the placements that ran.
  double peak_load_without_eplb = 0;
  double peak_load = 0;
  bool rebalanced = false;
  // Rule of the decision just before the window; nullopt if no decision was due.
  std::optional<RebalanceRule> rule;
  std::string reason;  // a sentence
  // Prediction for the first whole window under the placement decided on, taken or not. None if
  // there is no decision, or nothing changes.
  std::optional<Prediction> prediction;
  // Moves of the decision, less those of layers that a later decision replaced in time.
  int64_t transfers = 0;
  int64_t bytes = 0;
  double migration_seconds = 0;
  int64_t chunks = 0;                    // chunks that the decision was cut into
  int64_t chunks_committed = 0;          // those that were switched by the end of the trace
  std::optional<int64_t> begins_step;    // first step under one of them
  std::optional<int64_t> switched_step;  // first step under all of them
  double without_eplb_seconds = 0;       // seconds of the fullest GPUs without EPLB
  double static_seconds = 0;             // seconds of the fullest GPUs under the starting layout
  double saved_seconds = 0;    // part of without_eplb_seconds that the current placement saves
  double replica_seconds = 0;  // spent on replicas; without EPLB there are none
};

struct ReplaySummary {
  // Means over the windows with tokens; none if no window has tokens.
  std::optional<double> balancedness_without_eplb_mean;
  std::optional<double> balancedness_static_mean;
  std::optional<double> balancedness_mean;
  int64_t windows_without_tokens = 0;
  int64_t rebalances = 0;
  int64_t transfers = 0;
  int64_t bytes = 0;
  double without_eplb_seconds = 0;  // seconds of the fullest GPUs without EPLB
  double static_seconds = 0;        // seconds of the fullest GPUs under the starting layout
  double seconds_saved = 0;         // part of without_eplb_seconds that was saved
  double seconds_spent = 0;         // on migrations and replicas, >= 0
  int64_t predictions = 0;          // predictions that were compared with a later window, and
  int64_t predictions_held = 0;     // within their error
};

struct ReplayResult {
  std::vector<ReplayRow> rows;
  ReplaySummary summary;
  std::vector<CandidateScore> candidates;  // scores of a policy that chooses, at the end
};

// Called before window `window`; may be empty.
using ReplayProgress = std::function<void(int64_t window)>;
// A window that passed.
struct ReplayedWindow {
  std::span<const ReplayRow> rows;  // up to this window's
  const Evaluation& equal;          // figures of the placements that ran, in equal shares
  // The placement that the newest decision changed: earlier decisions, as far as they are switched.
  const Placement& left;
  const Placement& target;  // the one that it leads to
};
// Called after each window; may be empty. An error ends the replay.
using ReplayObserver = std::function<absl::Status(const ReplayedWindow& window)>;

// A policy that chooses (PolicyTraits) decides by the back-test of all windows before the decision:
// history and decay are its own, and `every` is the time between two opportunities to decide.
//
// Window 0 runs Placement::Static(topology). Before every options.every-th window the policy is
// asked, with the last options.history windows. Its answer, aligned to the placement that the last
// decision leads to, replaces that one when EvaluateRebalance says so, layer by layer as
// options.switch_time allows; with exact splits when the least peaks of the
// same windows fall by min_gain and, with prices, by more seconds than the migration takes. Nothing
// before window t depends on windows >= t. Every number is finite. errors: InvalidArgument for
// options out of range, no window, windows of another shape than the topology, a steps range that
// is empty, a history whose sum overflows, bytes that sum to more than 2^63-1; what the policy
// refuses, with its name and the window; what `observer` gives. threads: safe, no state; `progress`
// and `observer` are called on the caller's.
absl::StatusOr<ReplayResult> Replay(const ReplayTrace& trace, const Topology& topology,
                                    std::string_view policy, const ReplayOptions& options,
                                    const ReplayProgress& progress = {},
                                    const ReplayObserver& observer = {});

}  // namespace eplb
