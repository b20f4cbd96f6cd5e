// How long to wait before the next attempt to reach the daemon.
#ifndef EPLB_CLIENT_SESSION_BACKOFF_H_
#define EPLB_CLIENT_SESSION_BACKOFF_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace eplb {

struct BackoffOptions {
  absl::Duration first = absl::Milliseconds(200);
  absl::Duration longest = absl::Seconds(30);
  absl::Duration refused = absl::Seconds(30);  // at most, after a daemon that refused the rank
};

// Of a job of so many ranks: together they make about 200 attempts a second in the mean, from 3,000
// ranks on about world_size / 15. A small job finds a daemon that is back within seconds.
inline BackoffOptions BackoffFor(int32_t world_size) {
  const absl::Duration spread = absl::Seconds(world_size / 100.0);
  return {.longest = std::clamp(spread, absl::Seconds(2), absl::Seconds(30))};
}

// Full jitter: uniform between 0 and min(longest, first * 2^failures), so that the ranks of a job
// do not come back all at once. failures: attempts since the last Welcome, >= 0. uniform: in [0,
// 1).
inline absl::Duration BackoffDelay(const BackoffOptions& options, int32_t failures,
                                   double uniform) {
  const int64_t factor = int64_t{1} << std::min(failures, 20);  // 0.2 s * 2^20 is above any limit
  return uniform * std::min(options.longest, options.first * factor);
}

}  // namespace eplb

#endif  // EPLB_CLIENT_SESSION_BACKOFF_H_
