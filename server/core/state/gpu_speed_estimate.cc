#include "server/core/state/gpu_speed_estimate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/text.h"

namespace eplb::core {
namespace {

// The lower one of the middle two. REQUIRES: values is not empty.
double LowerMedian(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The GPUs of a window whose step time is known.
struct KnownGpus {
  std::vector<size_t> gpus;
  double mean_tokens = 0;
};

KnownGpus KnownOf(std::span<const double> seconds, std::span<const double> tokens) {
  KnownGpus known;
  double sum = 0;
  for (size_t gpu = 0; gpu < seconds.size(); ++gpu) {
    if (!(seconds[gpu] > 0)) continue;
    known.gpus.push_back(gpu);
    sum += tokens[gpu];
  }
  if (!known.gpus.empty()) known.mean_tokens = sum / static_cast<double>(known.gpus.size());
  return known;
}

// The part of the time of a GPU with mean tokens that does not grow with tokens; none where the
// tokens differ too little to show it.
std::optional<double> FixedPart(const KnownGpus& known, std::span<const double> seconds,
                                std::span<const double> tokens) {
  std::vector<size_t> order = known.gpus;
  const size_t half = order.size() / 2;
  if (order.size() < GpuSpeedEstimate::kLeastGpusForFixed) return std::nullopt;
  std::ranges::sort(order, [&tokens](size_t a, size_t b) {
    return tokens[a] < tokens[b] || (tokens[a] == tokens[b] && a < b);
  });
  std::vector<double> slopes;
  for (size_t i = 0; i + half < order.size() && i < half; ++i) {
    const size_t few = order[i];
    const size_t many = order[i + half];
    if (tokens[many] < GpuSpeedEstimate::kLeastSpread * tokens[few]) continue;
    slopes.push_back((seconds[many] - seconds[few]) / (tokens[many] - tokens[few]));
  }
  if (slopes.size() * 2 < half) return std::nullopt;
  const double slope = std::max(0.0, LowerMedian(std::move(slopes)));
  std::vector<double> at_mean;
  for (const size_t gpu : order) {
    at_mean.push_back(seconds[gpu] + slope * (known.mean_tokens - tokens[gpu]));
  }
  const double seconds_at_mean = LowerMedian(std::move(at_mean));
  if (!(seconds_at_mean > 0)) return std::nullopt;
  return std::clamp(1 - slope * known.mean_tokens / seconds_at_mean, 0.0, 1.0);
}

double Rounded(double speed) { return std::round(100 * speed) / 100; }

}  // namespace

GpuSpeedEstimate GpuSpeedEstimate::Continue(std::vector<wire::StatedSpeed> slow) {
  GpuSpeedEstimate estimate;
  estimate.slow_ = std::move(slow);
  return estimate;
}

std::vector<GpuSpeedEstimate::Change> GpuSpeedEstimate::AddWindow(std::span<const double> seconds,
                                                                  std::span<const double> tokens) {
  std::vector<Change> changes;
  const KnownGpus known = KnownOf(seconds, tokens);
  if (known.gpus.size() * 2 < seconds.size() || !(known.mean_tokens > 0)) return changes;
  if (const std::optional<double> part = FixedPart(known, seconds, tokens)) {
    fixed_parts_.push_back(*part);
    if (fixed_parts_.size() > kWindows) fixed_parts_.pop_front();
  }
  const double fixed = fixed_part();
  // Work of a GPU's step in units of that of a GPU with mean tokens.
  const auto work = [&](size_t gpu) {
    return fixed + (1 - fixed) * tokens[gpu] / known.mean_tokens;
  };
  std::vector<double> paces;
  for (const size_t gpu : known.gpus) {
    if (work(gpu) > 0) paces.push_back(seconds[gpu] / work(gpu));
  }
  const double usual = LowerMedian(std::move(paces));
  times_.resize(seconds.size());
  for (const size_t gpu : known.gpus) {
    if (!(work(gpu) > 0)) continue;
    std::deque<StepTime>& times = times_[gpu];
    times.push_back({.seconds = seconds[gpu], .expected = usual * work(gpu)});
    if (times.size() > kWindows) times.pop_front();
    const auto index = static_cast<int32_t>(gpu);
    const std::optional<StepTime> median = MedianOf(index);
    if (!median) continue;
    const double before = SpeedOf(index);
    double after = std::clamp(Rounded(median->speed()), kLeast, 1.0);
    if (after >= (before < 1 ? kRecovered : kSlow)) after = 1;
    const bool moves = after == 1 || before == 1 || std::abs(after - before) >= kStep - 1e-9;
    if (after == before || !moves) continue;
    Name(index, after);
    changes.push_back({.gpu = index, .before = before, .after = after});
  }
  return changes;
}

std::optional<StepTime> GpuSpeedEstimate::MedianOf(int32_t gpu) const {
  if (static_cast<size_t>(gpu) >= times_.size()) return std::nullopt;
  const std::deque<StepTime>& times = times_[static_cast<size_t>(gpu)];
  if (times.size() < kWindows) return std::nullopt;
  std::vector<StepTime> sorted(times.begin(), times.end());
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end(),
                   [](const StepTime& a, const StepTime& b) { return a.speed() < b.speed(); });
  return *middle;
}

double GpuSpeedEstimate::fixed_part() const {
  return fixed_parts_.empty() ? 0 : LowerMedian({fixed_parts_.begin(), fixed_parts_.end()});
}

double GpuSpeedEstimate::SpeedOf(int32_t gpu) const {
  const auto found =
      std::ranges::find_if(slow_, [gpu](const wire::StatedSpeed& one) { return one.gpu == gpu; });
  return found == slow_.end() ? 1 : found->speed;
}

void GpuSpeedEstimate::Name(int32_t gpu, double speed) {
  std::erase_if(slow_, [gpu](const wire::StatedSpeed& one) { return one.gpu == gpu; });
  if (speed >= 1) return;
  const auto after =
      std::ranges::find_if(slow_, [gpu](const wire::StatedSpeed& one) { return one.gpu > gpu; });
  slow_.insert(after, {.gpu = gpu, .speed = speed});
  if (slow_.size() <= wire::kMaxNamedGpus) return;
  slow_.erase(std::ranges::max_element(
      slow_, [](const auto& a, const auto& b) { return a.speed < b.speed; }));
}

std::string SpeedSentence(const GpuSpeedEstimate& estimate, const wire::StatedSpeed& slow) {
  std::string text = absl::StrFormat("GPU %d runs at %.2f of the median GPU", slow.gpu, slow.speed);
  const std::optional<StepTime> median = estimate.MedianOf(slow.gpu);
  if (!median) return absl::StrCat(text, ", as measured before this daemon started");
  const ComparedText times = CompareSeconds(median->seconds, median->expected);
  absl::StrAppend(&text, ": in the median of ", GpuSpeedEstimate::kWindows,
                  " windows its step took ", times.of, ", ", times.than,
                  " are expected for its tokens");
  if (estimate.fixed_part() >= 0.005) {
    absl::StrAppendFormat(&text, " and %.0f %% fixed work", 100 * estimate.fixed_part());
  }
  if (slow.speed <= GpuSpeedEstimate::kLeast) {
    absl::StrAppend(&text, "; no GPU is named slower than ", GpuSpeedEstimate::kLeast);
  }
  return text;
}

}  // namespace eplb::core
