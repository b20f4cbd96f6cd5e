#include "server/history/window_history.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/status_macros.h"
#include "placement/placement.h"

namespace eplb {
namespace {

// A layer's sum is an int64; that of all layers may be above it, and is then the largest int64.
int64_t TokensOf(const Load& load) {
  int64_t tokens = 0;
  for (Eigen::Index layer = 0; layer < load.counts().rows(); ++layer) {
    const int64_t of_layer = load.counts().row(layer).sum();
    if (of_layer > std::numeric_limits<int64_t>::max() - tokens) {
      return std::numeric_limits<int64_t>::max();
    }
    tokens += of_layer;
  }
  return tokens;
}

void AddMeasured(const core::PastWindow& window, v1::Window& figures) {
  const core::Measured& measured = *window.measured;
  figures.mutable_versions()->Assign(measured.versions.begin(), measured.versions.end());
  figures.set_split(wire::SplitName(measured.split));
  figures.set_balancedness(measured.balancedness);
  if (const auto& figure = measured.balancedness_static) figures.set_balancedness_static(*figure);
  if (const auto& figure = measured.balancedness_without_eplb) {
    figures.set_balancedness_without_eplb(*figure);
  }
  std::optional<double> equal = measured.balancedness;
  if (measured.split != SplitMode::kEqual) {
    equal = window.on_gpus == nullptr
                ? std::nullopt
                : EvaluateGpuLoads(window.on_gpus->loads, window.shape.num_gpus).mean_balancedness;
  }
  if (equal) figures.set_balancedness_equal(*equal);
}

v1::Window FiguresOf(const core::PastWindow& window, absl::Time now) {
  v1::Window figures;
  figures.set_completed_unix_micros(absl::ToUnixMicros(now));
  figures.set_run_id(window.run_id);
  figures.set_first_step(static_cast<uint64_t>(window.first_step));
  figures.set_last_step(static_cast<uint64_t>(window.last_step));
  figures.set_coverage(window.coverage);
  if (window.step_seconds) figures.set_step_seconds(*window.step_seconds);
  figures.set_tokens(static_cast<uint64_t>(TokensOf(*window.load)));
  figures.set_split(wire::SplitName(window.split));
  figures.set_has_loads(true);
  if (window.on_gpus != nullptr) {
    const std::vector<int64_t>& versions = window.on_gpus->versions;
    figures.mutable_versions()->Assign(versions.begin(), versions.end());
  }
  if (window.measured) AddMeasured(window, figures);
  return figures;
}

int64_t NumberOf(const v1::Window& figures) { return static_cast<int64_t>(figures.window()); }

}  // namespace

void WindowHistory::Add(const std::string& job, const core::PastWindow& window, absl::Time now) {
  v1::Window figures = FiguresOf(window, now);
  const std::lock_guard lock(mutex_);
  figures.set_window(static_cast<uint64_t>(++newest_window_));
  OfJob& of_job = jobs_[job];
  of_job.windows.push_back({.figures = std::move(figures),
                            .shape = window.shape,
                            .load = window.load,
                            .on_gpus = window.on_gpus});
  ++of_job.num_held;
  ++num_windows_;
  load_bytes_ += BytesOf(of_job.windows.back());
  if (of_job.windows.size() > std::max<size_t>(limits_.max_windows, 1)) DropOldest(of_job);
  BoundWindows();
  BoundBytes();
}

void WindowHistory::Forget(const std::string& job) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  while (!found->second.windows.empty()) DropOldest(found->second);
  jobs_.erase(found);
}

void WindowHistory::Restore(std::vector<StoredWindow> windows) {
  const std::lock_guard lock(mutex_);
  for (StoredWindow& one : windows) {
    newest_window_ = NumberOf(one.figures);
    one.figures.set_has_loads(false);
    OfJob& of_job = jobs_[one.job];
    of_job.windows.push_back({.figures = std::move(one.figures), .shape = {}});
    ++num_windows_;
    if (of_job.windows.size() > std::max<size_t>(limits_.max_windows, 1)) DropOldest(of_job);
  }
  saved_window_ = newest_window_;
  BoundWindows();
}

std::vector<StoredWindow> WindowHistory::Unsaved(size_t limit) const {
  const std::lock_guard lock(mutex_);
  std::vector<StoredWindow> unsaved;
  for (const auto& [name, job] : jobs_) {
    for (auto kept = job.windows.rbegin(); kept != job.windows.rend(); ++kept) {
      if (NumberOf(kept->figures) <= saved_window_) break;
      unsaved.push_back({.job = name, .figures = kept->figures});
    }
  }
  std::ranges::sort(unsaved, [](const StoredWindow& a, const StoredWindow& b) {
    return a.figures.window() < b.figures.window();
  });
  if (unsaved.size() > limit) unsaved.resize(limit);
  return unsaved;
}

void WindowHistory::NoteSaved(int64_t window) {
  const std::lock_guard lock(mutex_);
  saved_window_ = std::max(saved_window_, window);
}

std::vector<v1::Window> WindowHistory::Figures(const std::string& job, int64_t after,
                                               int32_t limit) const {
  const std::lock_guard lock(mutex_);
  std::vector<v1::Window> result;
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return result;
  const std::deque<Kept>& windows = found->second.windows;
  const auto newer =
      std::partition_point(windows.begin(), windows.end(),
                           [after](const Kept& kept) { return NumberOf(kept.figures) <= after; });
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
    const bool has_any = found != jobs_.end() &&
                         (window ? !found->second.windows.empty() : found->second.num_held > 0);
    if (!has_any) return NotFound("job ", job, " has no complete window since the daemon started");
    const std::deque<Kept>& windows = found->second.windows;
    const int64_t number = window.value_or(NumberOf(windows.back().figures));
    const auto one = std::partition_point(windows.begin(), windows.end(), [=](const Kept& each) {
      return NumberOf(each.figures) < number;
    });
    if (one == windows.end() || NumberOf(one->figures) != number) {
      return NotFound("job ", job, " has no window ", number, "; those that are kept are within ",
                      windows.front().figures.window(), "..", windows.back().figures.window());
    }
    if (one->load == nullptr) {
      return NotFound("the loads of window ", number, " of job ", job,
                      " are not kept any more: the daemon keeps those since its start, within "
                      "limits.max_past_loads_mib");
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

void WindowHistory::DropOldestLoads(OfJob& job) {
  Kept& oldest = *(job.windows.end() - static_cast<ptrdiff_t>(job.num_held));
  load_bytes_ -= BytesOf(oldest);
  oldest.load.reset();
  oldest.on_gpus.reset();
  oldest.figures.set_has_loads(false);
  --job.num_held;
}

void WindowHistory::DropOldest(OfJob& job) {
  if (job.num_held == job.windows.size()) DropOldestLoads(job);
  job.windows.pop_front();
  --num_windows_;
}

void WindowHistory::BoundWindows() {
  while (num_windows_ > limits_.max_windows_of_all) {
    OfJob* oldest = nullptr;
    for (auto& [name, job] : jobs_) {
      if (job.windows.size() < 2) continue;
      const uint64_t number = job.windows.front().figures.window();
      if (oldest == nullptr || number < oldest->windows.front().figures.window()) oldest = &job;
    }
    if (oldest == nullptr) return;
    DropOldest(*oldest);
  }
}

void WindowHistory::BoundBytes() {
  const auto oldest_held = [](const OfJob& job) {
    return job.windows[job.windows.size() - job.num_held].figures.window();
  };
  while (load_bytes_ > limits_.max_load_bytes) {
    OfJob* oldest = nullptr;
    for (auto& [name, job] : jobs_) {
      if (job.num_held < 2) continue;
      if (oldest == nullptr || oldest_held(job) < oldest_held(*oldest)) oldest = &job;
    }
    if (oldest == nullptr) return;
    DropOldestLoads(*oldest);
  }
}

}  // namespace eplb
