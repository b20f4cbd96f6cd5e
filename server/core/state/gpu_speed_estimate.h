// How fast the GPUs of a job are, as their ranks' step times show.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/gpu_settings.h"

namespace eplb::core {

// A GPU's mean step time in a window, and what is expected of a GPU of usual speed with its tokens.
struct StepTime {
  double seconds = 0;
  double expected = 0;

  double speed() const { return expected / seconds; }
  friend bool operator==(const StepTime&, const StepTime&) = default;
};

// Model: a step takes GPU g (fixed + per_token * tokens of g) / speed of g. In a window,
// - the slope over tokens is the median slope of G / 2 pairs of GPUs, the i-th with the
//   (i + G / 2)-th by tokens: incomplete Theil-Sen, which a minority of slow GPUs does not move. It
//   is looked at only where the tokens of the pairs differ by kLeastSpread; until then, and with
//   fewer than kLeastGpusForFixed GPUs, the whole time counts as per token, which is what trainers
//   are asked to record;
// - the usual speed is that of the median GPU (of an even number, the faster of the middle two).
// A GPU's speed is the median of kWindows windows, never one window's. It is in kLeast..1: no GPU
// is named faster than the median. A GPU is named slow below kSlow, and no longer from kRecovered
// on; between, its speed moves only by kStep and more, so that noise moves no expert. Memory:
// kWindows pairs of numbers a GPU. Threads: a value, not safe. Deterministic.
class GpuSpeedEstimate {
 public:
  static constexpr size_t kWindows = 8;
  static constexpr double kLeast = 0.5;
  static constexpr double kSlow = 0.9;
  static constexpr double kRecovered = 0.95;
  static constexpr double kStep = 0.05;
  static constexpr double kLeastSpread = 1.1;
  static constexpr size_t kLeastGpusForFixed = 8;

  struct Change {
    int32_t gpu = 0;
    double before = 1;
    double after = 1;
  };

  GpuSpeedEstimate() = default;
  // Goes on with the slow GPUs that another daemon named.
  static GpuSpeedEstimate Continue(std::vector<wire::StatedSpeed> slow);

  // seconds, tokens: [G], of a step on the mean of a window; seconds 0: not known. Returns the GPUs
  // whose speed is another one now, rising. A window whose known GPUs are fewer than half, or have
  // no tokens, tells nothing. REQUIRES: the same G in every call. cost: O(G log G).
  std::vector<Change> AddWindow(std::span<const double> seconds, std::span<const double> tokens);

  // Slow GPUs only, rising; speeds are multiples of 0.01. At most kMaxNamedGpus, the slowest.
  const std::vector<wire::StatedSpeed>& slow() const { return slow_; }
  // The window of the median, for a GPU with kWindows of them.
  std::optional<StepTime> MedianOf(int32_t gpu) const;
  // The part of a step time that does not grow with tokens, 0..1.
  double fixed_part() const;

 private:
  double SpeedOf(int32_t gpu) const;
  void Name(int32_t gpu, double speed);

  std::vector<std::deque<StepTime>> times_;  // [G], newest last
  std::deque<double> fixed_parts_;           // from the newest kWindows windows that show one
  std::vector<wire::StatedSpeed> slow_;
};

// "GPU 3 runs at 0.82 of the median GPU: in the median of 8 windows its step took 12.1 ms, 9.9 ms
// are expected for its tokens".
std::string SpeedSentence(const GpuSpeedEstimate& estimate, const wire::StatedSpeed& slow);

}  // namespace eplb::core
