// The complete windows of each job, to be looked back at: the figures of many, the loads of the
// newest. In memory alone: a daemon that starts begins without any.
#ifndef EPLB_SERVER_HISTORY_WINDOW_HISTORY_H_
#define EPLB_SERVER_HISTORY_WINDOW_HISTORY_H_

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

// Figures of one window. balancedness*: means over layers with load; none: a placement is not
// known. Where the job uses GPU speeds other than 1, they are of tokens / speed, as Measure says.
struct WindowFigures {
  int64_t window = 0;  // rises over all jobs of this daemon, from 1
  absl::Time completed_at;
  std::string run_id;
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::vector<int64_t> versions;  // that its steps ran under, rising; empty: not known
  double coverage = 0;
  double step_seconds = 0;                    // 0: not known yet
  int64_t tokens = 0;                         // of all layers; 2^63-1 for a sum above it
  SplitMode split = SplitMode::kEqual;        // of `balancedness`
  std::optional<double> balancedness;         // measured
  std::optional<double> balancedness_equal;   // computed: equal shares, the same placements
  std::optional<double> balancedness_static;  // counterfactual: equal shares, static layout
  bool has_loads = false;                     // Loads() still knows it
};

// Loads of one window.
struct WindowLoads {
  WindowFigures figures;
  std::shared_ptr<const Load> load;                // [L, E]
  std::shared_ptr<const core::GpuTokens> on_gpus;  // in equal shares; null: not known
  RealMatrix on_gpus_static;                       // [L, G], of the static layout
};

inline constexpr size_t kMaxPastWindows = 4096;  // figures kept of a job

// threads: safe. Memory: bounded by Limits, plus the newest window of each job, which keeps its
// loads whatever the limits are.
class WindowHistory {
 public:
  struct Limits {
    int64_t max_load_bytes = int64_t{64} << 20;  // of all jobs; the oldest windows lose their loads
    size_t max_windows = kMaxPastWindows;        // of a job; the oldest go first
    size_t max_windows_of_all = size_t{1} << 16;  // likewise; 65,536 * 400 B = 26 MB of figures
  };
  explicit WindowHistory(Limits limits) : limits_(limits) {}

  // REQUIRES: window.load is set. cost: O(L * E), and O(jobs) for each window that a limit drops.
  void Add(const std::string& job, const core::PastWindow& window, absl::Time now);
  void Forget(const std::string& job);

  // Oldest first: the newest `limit` of those above `after`; empty for a job that has none.
  // cost: O(limit).
  std::vector<WindowFigures> Figures(const std::string& job, int64_t after, int32_t limit) const;
  // window: a number, or none for the newest. errors: NotFound when there is no such window of the
  // job, or when its loads are not kept any more. cost: O(L * S), without the lock.
  absl::StatusOr<WindowLoads> Loads(const std::string& job, std::optional<int64_t> window) const;
  // Of the loads that are held.
  int64_t load_bytes() const;

 private:
  struct Kept {
    WindowFigures figures;
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
  int64_t load_bytes_ = 0;
  size_t num_windows_ = 0;
};

}  // namespace eplb

#endif  // EPLB_SERVER_HISTORY_WINDOW_HISTORY_H_
