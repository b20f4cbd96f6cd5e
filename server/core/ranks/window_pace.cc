#include "server/core/ranks/window_pace.h"

#include <algorithm>
#include <cmath>

#include "server/core/state/step_rate.h"
#include "server/core/state/windows.h"

namespace eplb::core {
namespace {

// For a load with noise n and change d of a window (variances), the mean of two windows is off by
// 1.5 n + 1.25 d and the second window by 2 n + d. Doubling the length multiplies d / n by 4.
constexpr double kLengthenBelow = 0.9;   // d / n < 0.8
constexpr double kShortenAbove = 1.125;  // d / n > 8
constexpr double kMemory = 0.5;          // weight of an error at the next window

// Returns the layers' shares of tokens by expert; rows of layers without tokens are zero.
RealMatrix SharesOf(const Load& load) {
  RealMatrix shares = load.ToDouble();
  for (Eigen::Index layer = 0; layer < shares.rows(); ++layer) {
    const double sum = shares.row(layer).sum();
    if (sum > 0) shares.row(layer) /= sum;
  }
  return shares;
}

// Returns true if `next` directly follows `window`, with equal length.
bool Follows(const Window& window, const Window& next) {
  return next.first_step == window.last_step + 1 &&
         next.last_step - next.first_step == window.last_step - window.first_step;
}

// Returns the fewest steps that are worth a window.
int32_t LeastSteps(const Job& job) {
  const double step_seconds = SecondsPerStep(job.current->rate);
  if (step_seconds <= 0) return kLeastWindowSteps;
  const double seconds =
      std::max(kLeastWindowSeconds, kSolvesPerWindow * job.decisions.solve_seconds);
  return static_cast<int32_t>(
      std::clamp<double>(std::ceil(seconds / step_seconds), kLeastWindowSteps, kMaxReportEvery));
}

}  // namespace

void NoteWindowForPace(Job& job) {
  WindowPace& pace = job.reports.pace;
  const std::deque<Window>& complete = job.windows.complete;
  const size_t count = complete.size();
  if (pace.steps == 0) pace.steps = job.current->report_every;
  if (job.current->report_interval_change.report_every != 0 || count < 3) return;
  const Window& first = complete[count - 3];
  const Window& second = complete[count - 2];
  const Window& third = complete[count - 1];
  const int64_t steps = third.last_step - third.first_step + 1;
  if (!Follows(first, second) || !Follows(second, third) || steps != pace.steps) return;
  const RealMatrix shares = SharesOf(*third.load);
  const RealMatrix last = SharesOf(*second.load);
  const RealMatrix mean = (SharesOf(*first.load) + last) / 2;
  pace.error_of_last = kMemory * pace.error_of_last + (shares - last).square().sum();
  pace.error_of_mean = kMemory * pace.error_of_mean + (shares - mean).square().sum();
  int32_t next = pace.steps;
  if (pace.error_of_mean <= kLengthenBelow * pace.error_of_last) {
    next = std::min(2 * pace.steps, kMaxReportEvery);
  } else if (pace.error_of_mean > kShortenAbove * pace.error_of_last) {
    next = std::max(pace.steps / 2, std::min(pace.steps, kLeastWindowSteps));
  }
  if (next != pace.steps) pace = {.steps = next};
}

int32_t WantedWindowSteps(const Job& job, int32_t longest) {
  const int32_t steps = job.reports.pace.steps;
  const int32_t current = steps > 0 ? steps : job.current->report_every;
  return std::min(std::max(current, LeastSteps(job)), longest);
}

}  // namespace eplb::core
