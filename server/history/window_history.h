// The complete windows of each job, to be looked back at: the figures of many, the loads of the
// newest. Figures survive a restart in a store that keeps them; loads do not.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/evaluate.h"
#include "placement/load.h"
#include "placement/topology.h"
#include "server/core/values/measured.h"
#include "server/core/values/views.h"

namespace eplb {

using core::kMaxPastWindows;
using core::StoredWindow;

// Loads of one window.
struct WindowLoads {
  v1::Window figures;
  std::shared_ptr<const Load> load;                // [L, E]
  std::shared_ptr<const core::GpuTokens> on_gpus;  // in equal shares; null: not known
  RealMatrix on_gpus_static;                       // [L, G], tokens under the static layout
};

// threads: safe. Memory: bounded by Limits, plus the newest window of each job, which keeps its
// loads whatever the limits are.
class WindowHistory {
 public:
  struct Limits {
    int64_t max_load_bytes = int64_t{64}
                             << 20;        // all jobs together; the oldest windows lose their loads
    size_t max_windows = kMaxPastWindows;  // per job; the oldest are dropped first
    size_t max_windows_of_all =
        core::kMaxPastWindowsOfAll;  // all jobs together; the oldest are dropped first
  };
  explicit WindowHistory(Limits limits) : limits_(limits) {}

  // REQUIRES: window.load is set. cost: O(L * E), and O(jobs) for each window that a limit drops.
  void Add(const std::string& job, const core::PastWindow& window, absl::Time now);
  void Forget(const std::string& job);

  // Adds the windows of a store. The next one gets the number after the highest. REQUIRES:
  // `windows` are rising, and nothing was added before.
  void Restore(std::vector<StoredWindow> windows);
  // The oldest `limit` windows that no store keeps yet, rising. cost: O(jobs + windows to save).
  std::vector<StoredWindow> Unsaved(size_t limit) const;
  // All windows up to this number are in the store.
  void NoteSaved(int64_t window);

  // Oldest first: the newest `limit` of those above `after`; empty for a job that has none.
  // cost: O(limit).
  std::vector<v1::Window> Figures(const std::string& job, int64_t after, int32_t limit) const;
  // window: a number, or none for the newest that has loads. errors: NotFound when there is no such
  // window of the job, or when its loads are not kept any more. cost: O(L * S), without the lock.
  absl::StatusOr<WindowLoads> Loads(const std::string& job, std::optional<int64_t> window) const;
  // Returns the bytes of the loads that are held.
  int64_t load_bytes() const;

 private:
  struct Kept {
    v1::Window figures;
    TopologyOptions shape;
    std::shared_ptr<const Load> load = nullptr;  // null once dropped
    std::shared_ptr<const core::GpuTokens> on_gpus = nullptr;
  };
  // The windows of a job, numbers rising. The newest `num_held` have their loads.
  struct OfJob {
    std::deque<Kept> windows;
    size_t num_held = 0;
  };
  static int64_t BytesOf(const Kept& kept);
  void DropOldestLoads(OfJob& job);
  void DropOldest(OfJob& job);
  // Keep the newest window of each job and its loads.
  void BoundWindows();
  void BoundBytes();

  const Limits limits_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, OfJob> jobs_;
  int64_t newest_window_ = 0;
  int64_t saved_window_ = 0;
  int64_t load_bytes_ = 0;
  size_t num_windows_ = 0;
};

}  // namespace eplb
