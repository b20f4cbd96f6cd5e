#include "server/history/window_history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "placement/placement.h"

namespace eplb {
namespace {

WindowFigures FiguresOf(const core::PastWindow& window, int64_t number, absl::Time now) {
  WindowFigures figures{.window = number,
                        .completed_at = now,
                        .run_id = window.run_id,
                        .first_step = window.first_step,
                        .last_step = window.last_step,
                        .coverage = window.coverage,
                        .step_seconds = window.step_seconds,
                        .tokens = window.load->counts().sum(),
                        .split = window.split,
                        .has_loads = true};
  if (window.on_gpus != nullptr) figures.versions = window.on_gpus->versions;
  if (!window.measured) return figures;
  const core::Measured& measured = *window.measured;
  figures.versions = measured.versions;
  figures.split = measured.split;
  figures.balancedness = measured.balancedness;
  figures.balancedness_static = measured.balancedness_static;
  if (measured.split == SplitMode::kEqual) {
    figures.balancedness_equal = measured.balancedness;
  } else if (window.on_gpus != nullptr) {
    figures.balancedness_equal =
        EvaluateGpuLoads(window.on_gpus->loads, window.shape.num_gpus).mean_balancedness;
  }
  return figures;
}

}  // namespace

void WindowHistory::Add(const std::string& job, const core::PastWindow& window, absl::Time now) {
  WindowFigures figures = FiguresOf(window, 0, now);
  const std::lock_guard lock(mutex_);
  figures.window = ++newest_window_;
  std::deque<Kept>& windows = jobs_[job];
  windows.push_back({.figures = std::move(figures),
                     .shape = window.shape,
                     .load = window.load,
                     .on_gpus = window.on_gpus});
  load_bytes_ += BytesOf(windows.back());
  if (windows.size() > limits_.max_windows) {
    DropLoads(windows.front());
    windows.pop_front();
  }
  BoundBytes();
}

void WindowHistory::Forget(const std::string& job) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  for (Kept& kept : found->second) DropLoads(kept);
  jobs_.erase(found);
}

std::vector<WindowFigures> WindowHistory::Figures(const std::string& job, int64_t after,
                                                  int32_t limit) const {
  const std::lock_guard lock(mutex_);
  std::vector<WindowFigures> result;
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return result;
  const std::deque<Kept>& windows = found->second;
  const auto newer =
      std::partition_point(windows.begin(), windows.end(),
                           [after](const Kept& kept) { return kept.figures.window <= after; });
  const auto surplus = std::max<ptrdiff_t>(windows.end() - newer - std::max(limit, 0), 0);
  std::transform(newer + surplus, windows.end(), std::back_inserter(result),
                 [](const Kept& kept) { return kept.figures; });
  return result;
}

absl::StatusOr<WindowLoads> WindowHistory::Loads(const std::string& job,
                                                 std::optional<int64_t> window) const {
  Kept kept;
  {
    const std::lock_guard lock(mutex_);
    const auto found = jobs_.find(job);
    if (found == jobs_.end() || found->second.empty()) {
      return absl::NotFoundError(
          absl::StrCat("job ", job, " has no complete window since the daemon started"));
    }
    const std::deque<Kept>& windows = found->second;
    const auto one = !window ? std::prev(windows.end())
                             : std::find_if(windows.begin(), windows.end(), [&](const Kept& each) {
                                 return each.figures.window == *window;
                               });
    if (one == windows.end() || one->load == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("the loads of window ", *window, " of job ", job, " are not kept"));
    }
    kept = *one;
  }
  EPLB_ASSIGN_OR_RETURN(const Topology topology, Topology::Make(kept.shape));
  EPLB_ASSIGN_OR_RETURN(Evaluation unmoved, Evaluate(*kept.load, Placement::Static(topology)));
  return WindowLoads{.figures = std::move(kept.figures),
                     .load = std::move(kept.load),
                     .on_gpus = std::move(kept.on_gpus),
                     .on_gpus_static = std::move(unmoved.gpu_loads)};
}

int64_t WindowHistory::load_bytes() const {
  const std::lock_guard lock(mutex_);
  return load_bytes_;
}

int64_t WindowHistory::BytesOf(const Kept& kept) {
  if (kept.load == nullptr) return 0;
  const int64_t cells =
      kept.load->counts().size() + (kept.on_gpus == nullptr ? 0 : kept.on_gpus->loads.size());
  return cells * static_cast<int64_t>(sizeof(int64_t));
}

void WindowHistory::DropLoads(Kept& kept) {
  load_bytes_ -= BytesOf(kept);
  kept.load.reset();
  kept.on_gpus.reset();
  kept.figures.has_loads = false;
}

// The oldest of all jobs go first, but for the newest of each.
void WindowHistory::BoundBytes() {
  while (load_bytes_ > limits_.max_load_bytes) {
    Kept* oldest = nullptr;
    for (auto& [job, windows] : jobs_) {
      const auto held = std::find_if(windows.begin(), windows.end(),
                                     [](const Kept& kept) { return kept.load != nullptr; });
      if (held == windows.end() || std::next(held) == windows.end()) continue;
      if (oldest == nullptr || held->figures.window < oldest->figures.window) oldest = &*held;
    }
    if (oldest == nullptr) return;
    DropLoads(*oldest);
  }
}

}  // namespace eplb
