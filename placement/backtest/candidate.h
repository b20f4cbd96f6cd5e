// Candidate of a back-test: a policy, the load that it is given, and its pace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/evaluate.h"
#include "placement/load.h"
#include "placement/load_history.h"
#include "placement/scenarios.h"

namespace eplb {

// Load window of the job.
struct SeenWindow {
  std::shared_ptr<const Load> load;  // [L, E]
  int64_t num_steps = 1;             // >= 1
};

// Forecast of the next window's shares of a layer's tokens (load_forecast.h).
enum class Forecasting { kNone, kTrend, kKalman };

// How the newest windows become an estimate of the next load.
struct LoadEstimate {
  int64_t windows = 1;  // number of newest windows that count, >= 1
  // If set, estimate = decay * estimate + (1 - decay) * window, oldest first. Otherwise their sum.
  std::optional<double> decay = std::nullopt;
  Forecasting forecasting = Forecasting::kNone;  // otherwise in place of sum and average
  // The typical loads of the job's history, in place of sum and average: scenarios
  // (placement/scenarios.h), of which each shall be balanced, not their sum alone.
  bool as_scenarios = false;

  friend bool operator==(const LoadEstimate&, const LoadEstimate&) = default;
};

struct Candidate {
  std::string policy;  // name in the registry; empty: do nothing
  LoadEstimate estimate = {};
  int32_t cadence = 1;  // opportunities from one decision to the next

  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// "incremental on the last window, at every opportunity"; "do nothing".
std::string TextOf(const Candidate& candidate);
inline constexpr std::string_view kNoPolicyName = "none";  // name of "do nothing"
// "incremental/last/1", for JSON and labels.
std::string NameOf(const Candidate& candidate);

// Returns each policy that the registry lists for this split, with each estimate: the last window
// and the sum of 4 windows at cadences 1, 2 and 4, a filtered average of 8 windows at cadences 1
// and 4. An average, the trend and scenarios have cadence 1.
// A job begins with the first of them.
std::vector<Candidate> CandidatesFor(SplitMode split);
inline constexpr int64_t kAutoWindows = 8;  // windows that the longest of their estimates looks at

struct ExpectedLoad {
  Load load;
  double num_steps = 1;     // steps that `load` stands for
  int64_t num_windows = 1;  // windows that it was made from
  // Batches that are expected: those windows, oldest first; the forecast itself; or the typical
  // loads, each times the windows that it stands for.
  std::vector<Load> recent;
  double recent_steps = 1;               // steps of these batches together
  std::vector<Scenario> scenarios = {};  // the typical loads; empty: `load` is one

  // Loads whose fullest GPUs count each for itself: exact splits and scenarios evaluate each of the
  // batches; otherwise none, and `load` counts as one.
  std::span<const Load> Each(SplitMode split) const {
    const bool each = split == SplitMode::kBatch || !scenarios.empty();
    return each ? std::span<const Load>(recent) : std::span<const Load>();
  }
  // Names the load in a reason.
  const char* Name() const { return scenarios.empty() ? "these steps" : "the typical loads"; }
  // Steps that the peak loads of a job stand for.
  double StepsFor(SplitMode split) const { return Each(split).empty() ? num_steps : recent_steps; }

  friend bool operator==(const ExpectedLoad&, const ExpectedLoad&) = default;
};

// windows: oldest first, at least one. history: with the newest of them. errors: those of
// CombineLoads.
absl::StatusOr<ExpectedLoad> ExpectLoad(const LoadEstimate& estimate,
                                        std::span<const SeenWindow> windows,
                                        std::span<const TypicalLoad> history = {});

}  // namespace eplb
