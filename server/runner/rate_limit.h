// A bucket of tokens: limits messages a second on average, and how many may arrive in a burst.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace eplb {

class RateLimit {
 public:
  // burst: as many messages as the rate allows in this time.
  RateLimit(int32_t per_second, absl::Time now, absl::Duration burst = absl::Seconds(2))
      : per_second_(per_second),
        most_(per_second * absl::ToDoubleSeconds(burst)),
        tokens_(most_),
        filled_(now) {}

  // Takes a token; false when there is none. now must not go back.
  bool Take(absl::Time now) {
    const double seconds = absl::ToDoubleSeconds(now - filled_);
    tokens_ = std::min(most_, tokens_ + seconds * per_second_);
    filled_ = now;
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  const double per_second_;
  const double most_;
  double tokens_;
  absl::Time filled_;
};

}  // namespace eplb
