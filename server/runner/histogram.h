// Durations sorted into fixed buckets by several threads.
#ifndef EPLB_SERVER_RUNNER_HISTOGRAM_H_
#define EPLB_SERVER_RUNNER_HISTOGRAM_H_

#include <mutex>

#include "server/core/values/buckets.h"

namespace eplb {

// threads: safe.
class Histogram {
 public:
  void Observe(double seconds) {
    const std::lock_guard lock(mutex_);
    buckets_.Add(seconds);
  }
  core::Buckets view() const {
    const std::lock_guard lock(mutex_);
    return buckets_;
  }

 private:
  mutable std::mutex mutex_;
  core::Buckets buckets_;  // guarded by mutex_
};

}  // namespace eplb

#endif  // EPLB_SERVER_RUNNER_HISTOGRAM_H_
