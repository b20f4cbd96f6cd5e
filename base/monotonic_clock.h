// The daemon's time: wall time at start plus what the monotonic clock has counted since, so that a
// step of the wall clock moves no deadline.
#pragma once

#include <chrono>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace eplb {

inline absl::Time MonotonicNow() {
  static const absl::Time wall_start = absl::Now();
  static const auto steady_start = std::chrono::steady_clock::now();
  return wall_start + absl::FromChrono(std::chrono::steady_clock::now() - steady_start);
}

}  // namespace eplb
