// Durations sorted into fixed buckets by several threads.
#pragma once

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
