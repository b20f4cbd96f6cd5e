#include "server/background/ticker.h"

#include <utility>

#include "server/runner/monotonic_clock.h"

namespace eplb {

Ticker::Ticker(absl::Duration period, std::function<void(absl::Time)> tick)
    : period_(period), tick_(std::move(tick)), thread_([this] {
        std::unique_lock lock(mutex_);
        while (!stop_.wait_for(lock, absl::ToChronoMilliseconds(period_),
                               [this] { return stopping_; })) {
          lock.unlock();
          tick_(MonotonicNow());
          lock.lock();
        }
      }) {}

Ticker::~Ticker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  thread_.join();
}

}  // namespace eplb
