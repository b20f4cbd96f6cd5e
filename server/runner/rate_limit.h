// A bucket of tokens: so many messages a second on average, twice that in a burst.
#ifndef EPLB_SERVER_RUNNER_RATE_LIMIT_H_
#define EPLB_SERVER_RUNNER_RATE_LIMIT_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace eplb {

class RateLimit {
 public:
  RateLimit(int32_t per_second, absl::Time now)
      : per_second_(per_second), tokens_(2.0 * per_second), filled_(now) {}

  // Takes a token; false when there is none. now must not go back.
  bool Take(absl::Time now) {
    const double seconds = absl::ToDoubleSeconds(now - filled_);
    tokens_ = std::min(2.0 * per_second_, tokens_ + seconds * per_second_);
    filled_ = now;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  const double per_second_;
  double tokens_;
  absl::Time filled_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_RUNNER_RATE_LIMIT_H_
