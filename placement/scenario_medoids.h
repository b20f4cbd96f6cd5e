// Chooses a few windows of a trace that stand for all of them: k-medoids on normalised loads.
// threads: safe, no state.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "placement/load.h"

namespace eplb {

// The distance of two windows is the part of a layer's tokens that other experts get, in 0..1, as
// a mean over layers: half of the sum over experts of the difference of their shares. A layer
// without load has no shares, so that it is at 1/2 from one with load.
struct ScenarioChoice {
  std::vector<size_t> windows;  // chosen, rising
  std::vector<double> weights;  // [windows], number of windows that each stands for, >= 1
  // Distance of a window to the chosen one that stands for it, over all windows with tokens.
  double mean_distance = 0;
  double max_distance = 0;
  size_t farthest = 0;  // the first window at max_distance
};

// Chooses `k` of the windows, or all that differ if these are fewer, so that the mean distance is
// small. Adds the window that lowers it most until there are k. Then exchanges a chosen window for
// another while that lowers it, at most kMaxExchanges times. Equal input gives an equal choice; the
// order of windows matters only between windows that are equally good. Windows without tokens are
// ignored. Of more than kMaxCandidates windows, only so many, evenly spaced, are candidates: these
// can be chosen, and the distances of these steer the choice.
// errors: InvalidArgument if `k` is not in 1..kMaxScenarios or no window has tokens; those of
// CheckSameShape. cost, for n windows and c candidates: O((c^2 + n * k) * L * E), and O(k * c^2)
// for each exchange; memory: 4 bytes * c * L * E.
absl::StatusOr<ScenarioChoice> ChooseScenarios(std::span<const Load* const> windows, int k);

inline constexpr size_t kMaxCandidates = 256;
inline constexpr int kMaxExchanges = 200;

}  // namespace eplb
