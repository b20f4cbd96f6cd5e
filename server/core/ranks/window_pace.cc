#include "server/core/ranks/window_pace.h"

#include <algorithm>
#include <cmath>

#include "server/core/decisions/prices.h"
#include "server/core/state/step_rate.h"
#include "server/core/state/windows.h"

namespace eplb::core {
namespace {

// For a load with noise n and change d of a window (variances), the mean of two windows is off by
// 1.5 n + 1.25 d and the second window by 2 n + d. Doubling the length multiplies d / n by 4.
constexpr double kLengthenBelow = 0.9;   // d / n < 0.86
constexpr double kShortenAbove = 1.125;  // d / n > 6
constexpr double kMemory = 0.5;          // weight of an error at the next window
constexpr double kClearly = 1.25;        // margin of shorter windows

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

// Returns the fewest steps that are worth a window, a power of two. Windows of `current` steps
// become shorter only if they may be clearly shorter, so that uneven steps do not change them again
// and again.
int32_t LeastSteps(const Job& job, int32_t current) {
  const double step_seconds = SecondsPerStep(job.current->rate);
  const double seconds =
      std::max(kLeastWindowSeconds, kSolvesPerWindow * job.decisions.solve_seconds);
  const double least = step_seconds > 0 ? std::ceil(seconds / step_seconds) : 1;
  int32_t steps = kLeastWindowSteps;
  while (steps < least && steps < kMaxReportEvery) steps *= 2;
  return steps < current && 2 * kClearly * least > current ? current : steps;
}

}  // namespace

void NoteWindowForPace(Job& job, int32_t longest) {
  WindowPace& pace = job.reports.pace;
  const std::deque<Window>& complete = job.windows.complete;
  const size_t count = complete.size();
  if (job.current->report_interval_change.report_every != 0 || count < 3) return;
  const Window& first = complete[count - 3];
  const Window& second = complete[count - 2];
  const Window& third = complete[count - 1];
  if (!Follows(first, second) || !Follows(second, third)) return;
  const int64_t steps = third.last_step - third.first_step + 1;
  if (pace.of != steps) pace = {.steps = pace.steps, .of = steps};
  const RealMatrix shares = SharesOf(*third.load);
  const RealMatrix last = SharesOf(*second.load);
  const RealMatrix mean = (SharesOf(*first.load) + last) / 2;
  pace.error_of_last = kMemory * pace.error_of_last + (shares - last).square().sum();
  pace.error_of_mean = kMemory * pace.error_of_mean + (shares - mean).square().sum();
  int64_t wanted = steps;
  if (pace.error_of_mean <= kLengthenBelow * pace.error_of_last) {
    wanted = 2 * steps;
  } else if (pace.error_of_mean > kShortenAbove * pace.error_of_last) {
    wanted = steps / 2;
  }
  pace.steps = static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, longest));
}

int32_t WantedWindowSteps(const Job& job, int32_t longest) {
  if (!Chooses(job)) return longest;
  const int32_t current = job.current->report_every;
  const int32_t steps = job.reports.pace.steps > 0 ? job.reports.pace.steps : current;
  return std::min(std::max(steps, LeastSteps(job, current)), longest);
}

}  // namespace eplb::core
