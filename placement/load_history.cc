#include "placement/load_history.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace eplb {
namespace {

constexpr double kHalfLife = 128;   // [windows]
constexpr double kFewWindows = 4;   // [windows] below it an old load is an outlier
constexpr int64_t kOld = 16;        // [windows]
constexpr double kNoTokens = 1e-6;  // below it a mean is 0: an expert that gets no tokens any more

bool SameShape(const Load& a, const Load& b) {
  return a.num_layers() == b.num_layers() && a.num_experts() == b.num_experts();
}

// Indices of the two most similar loads, the lower one first.
std::pair<size_t, size_t> MostSimilar(std::span<const TypicalLoad> loads) {
  std::vector<RealMatrix> shares;
  for (const TypicalLoad& one : loads) shares.push_back(NormalisedLayers(*one.load));
  std::pair<size_t, size_t> best;
  double least = std::numeric_limits<double>::max();
  for (size_t b = 1; b < shares.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      const double distance = (shares[a] - shares[b]).abs().sum();
      if (distance >= least) continue;
      least = distance;
      best = {a, b};
    }
  }
  return best;
}

// Absent if the mean is beyond a double's range.
std::optional<TypicalLoad> MeanOf(const TypicalLoad& a, const TypicalLoad& b) {
  const double windows = a.num_windows + b.num_windows;
  const double part = b.num_windows / windows;
  const RealMatrix first = a.load->ToDouble();
  RealMatrix tokens = first + part * (b.load->ToDouble() - first);
  tokens = (tokens < kNoTokens).select(0.0, tokens);
  absl::StatusOr<Load> mean = Load::FromEstimates(std::move(tokens));
  if (!mean.ok()) return std::nullopt;
  return TypicalLoad{.load = std::make_shared<const Load>(*std::move(mean)),
                     .num_steps = a.num_steps + part * (b.num_steps - a.num_steps),
                     .num_windows = windows,
                     .age = std::min(a.age, b.age)};
}

}  // namespace

void LoadHistory::Add(std::shared_ptr<const Load> window, double num_steps) {
  if (!window->has_tokens()) return;
  if (!loads_.empty() && !SameShape(*window, *loads_.front().load)) loads_.clear();
  for (TypicalLoad& one : loads_) {
    one.num_windows *= std::exp2(-1 / kHalfLife);
    ++one.age;
  }
  loads_.push_back({.load = std::move(window), .num_steps = num_steps});
  if (loads_.size() <= kMaxTypicalLoads) return;
  const auto outlier = std::ranges::find_if(loads_, [](const TypicalLoad& one) {
    return one.age >= kOld && one.num_windows < kFewWindows;
  });
  if (outlier != loads_.end()) {
    loads_.erase(outlier);
    return;
  }
  const auto [first, second] = MostSimilar(loads_);
  if (std::optional<TypicalLoad> mean = MeanOf(loads_[first], loads_[second])) {
    loads_[first] = *std::move(mean);
  }
  loads_.erase(loads_.begin() + static_cast<std::ptrdiff_t>(second));
}

}  // namespace eplb
