// Executes the effects of one decision, in order.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>

#include "absl/status/status.h"

#include "server/core/values/events.h"
#include "server/history/window_history.h"
#include "server/runner/histogram.h"
#include "server/runner/rate_limit.h"
#include "server/runner/sessions.h"
#include "server/store/store.h"

namespace eplb {

// A write is durable before any later effect happens. threads: one at a time, except store_works(),
// write_seconds() and write_errors().
class EffectExecutor {
 public:
  struct Sinks {
    Store* store = nullptr;
    Sessions* sessions = nullptr;
    std::function<void(core::Solve)> solve = {};
    std::function<void(const core::CancelSolve&)> cancel_solve = {};
    std::function<void(const core::Reply&)> reply = {};
    WindowHistory* history = nullptr;
  };
  explicit EffectExecutor(Sinks sinks);

  // When a Store or StoreTerm fails, the rest of the decision is skipped and the failure returned;
  // it is the core's next event. A Record, a StorePlan, a StoreTypicalLoads or a Forget not
  // required that fails is logged and skips nothing: the audit log must not stop what it describes.
  std::optional<core::StoreFailed> Execute(const core::Decision& decision);

  // False while the newest write failed, or the store's file is not what it was.
  bool store_works() const { return store_works_; }
  // Why it does not; OK while it does. Threads: any.
  absl::Status store_status() const;
  // Threads: any.
  core::Buckets write_seconds() const { return write_seconds_.view(); }
  int64_t write_errors() const { return write_errors_; }
  // Writes `term` again, to find out whether a failing store has recovered.
  void ProbeStore(int64_t term);
  // Writes the figures of windows that the store does not have yet, at most kWindowsAtOnce. No
  // message depends on them, so that they need no place among the effects. returns: true if it
  // wrote any.
  bool SaveWindows();
  // Looks whether the store's file is still there, which no write would tell.
  void CheckStore();

 private:
  std::optional<core::StoreFailed> Write(const core::Store& effect);
  std::optional<core::StoreFailed> Write(const core::StoreTerm& effect);
  void Record(const core::Record& record);
  // A refusal is logged, at most kLogsPerSecond of them a second.
  void Close(const core::Close& effect);
  void Write(const core::StorePlan& effect);
  void Write(const core::StoreTypicalLoads& effect);
  std::optional<core::StoreFailed> Forget(const core::Forget& effect);
  // Runs a write, and keeps how long it took and whether it worked.
  absl::Status Noted(const std::function<absl::Status(Store&)>& write);
  void NoteStore(const absl::Status& status);

  static constexpr int32_t kLogsPerSecond = 10;
  static constexpr size_t kWindowsAtOnce = 1024;

  const Sinks sinks_;
  std::atomic<bool> store_works_ = true;
  mutable std::mutex status_mutex_;
  absl::Status store_status_;  // guarded by status_mutex_
  std::atomic<int64_t> write_errors_ = 0;
  Histogram write_seconds_;
  RateLimit log_rate_;
  int64_t unlogged_ = 0;  // refusals
};

}  // namespace eplb
