// Durations sorted into fixed buckets.
#ifndef EPLB_SERVER_RUNNER_HISTOGRAM_H_
#define EPLB_SERVER_RUNNER_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <mutex>

namespace eplb {

// threads: safe.
class Histogram {
 public:
  // Upper bounds in seconds, from a store's write to a solve of the largest job.
  static constexpr std::array<double, 14> kBounds = {
      0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 5, 15, 60};
  struct View {
    std::array<int64_t, kBounds.size() + 1>
        counts{};  // of each bucket alone; the last is above all
    double sum_seconds = 0;
  };

  // What is not finite or below 0 is a bug of the caller, and left out.
  void Observe(double seconds) {
    if (!std::isfinite(seconds) || seconds < 0) return;
    const auto bucket = std::lower_bound(kBounds.begin(), kBounds.end(), seconds);
    const std::lock_guard lock(mutex_);
    ++view_.counts[static_cast<size_t>(std::distance(kBounds.begin(), bucket))];
    view_.sum_seconds += seconds;
  }
  View view() const {
    const std::lock_guard lock(mutex_);
    return view_;
  }

 private:
  mutable std::mutex mutex_;
  View view_;  // guarded by mutex_
};

}  // namespace eplb

#endif  // EPLB_SERVER_RUNNER_HISTOGRAM_H_
