// Forecasts of a job's next load window from those that passed: each layer's shares of its tokens,
// with as many tokens as the newest window has. threads: safe, no state.
#pragma once

#include <span>

#include "absl/status/statusor.h"

#include "placement/load.h"

namespace eplb {

// Part of the newest change that is expected to come again: more overshoots where loads turn.
inline constexpr double kTrendDamping = 0.6;

// The newest window and kTrendDamping of its change since the one before. windows: oldest first, of
// one shape. A single window comes back as it is. errors: those of Load. cost: O(L * E).
absl::StatusOr<Load> ForecastTrend(std::span<const Load> windows);

// Kalman filter of a level that drifts and is seen with noise, in square roots of shares, where the
// noise of drawn tokens is the same for all experts. The variances of drift and noise are those of
// the layer: changes from window to window that undo each other are noise. Without noise it is the
// newest window, without drift the mean. Fewer than three windows have no noise: the newest one
// comes back as it is. windows and errors: as above. cost: O(windows * L * E).
absl::StatusOr<Load> ForecastFiltered(std::span<const Load> windows);

}  // namespace eplb
