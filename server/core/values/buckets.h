// Durations sorted into fixed buckets, as a plain value.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>

namespace eplb::core {

struct Buckets {
  // Upper bounds in seconds, from a store's write to a solve of the largest job.
  static constexpr std::array<double, 14> kBounds = {
      0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 5, 15, 60};

  std::array<int64_t, kBounds.size() + 1>
      counts{};  // count of each bucket alone; the last: above all
  double sum_seconds = 0;

  // A value that is not finite or below 0 is a bug of the caller. It is left out.
  void Add(double seconds) {
    if (!std::isfinite(seconds) || seconds < 0) return;
    const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
    ++counts[static_cast<size_t>(std::distance(kBounds.begin(), bucket))];
    sum_seconds += seconds;
  }
  int64_t total() const { return std::accumulate(counts.begin(), counts.end(), int64_t{0}); }
};

}  // namespace eplb::core
