// Calls something at a steady pace on a thread of its own.
#ifndef EPLB_SERVER_BACKGROUND_TICKER_H_
#define EPLB_SERVER_BACKGROUND_TICKER_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/time/time.h"

namespace eplb {

class Ticker {
 public:
  // tick: gets MonotonicNow(); must not block for long.
  Ticker(absl::Duration period, std::function<void(absl::Time)> tick);
  // Waits for the call at work.
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  const absl::Duration period_;
  const std::function<void(absl::Time)> tick_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace eplb

#endif  // EPLB_SERVER_BACKGROUND_TICKER_H_
