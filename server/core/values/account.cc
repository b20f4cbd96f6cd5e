#include "server/core/values/account.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/text.h"

namespace eplb::core {
namespace {

constexpr int64_t kLeastWindows = 8;
constexpr double kMostError = 0.5;  // error of a measured price, as a fraction of it

struct Slope {
  double seconds = 0;
  double error = 0;  // two standard errors
};

// The least-squares slope of `seconds` over `peak` through the origin at equal `mean`.
std::optional<Slope> SlopeOf(const wire::SavedTime& sums) {
  double peak_peak = sums.peak_peak;
  double peak_seconds = sums.peak_seconds;
  double seconds_seconds = sums.seconds_seconds;
  auto freedom = static_cast<double>(sums.windows - 1);
  if (sums.mean_mean > 0) {  // zero if all steps have the same number of tokens
    peak_peak -= sums.peak_mean * sums.peak_mean / sums.mean_mean;
    peak_seconds -= sums.peak_mean * sums.mean_seconds / sums.mean_mean;
    seconds_seconds -= sums.mean_seconds * sums.mean_seconds / sums.mean_mean;
    freedom -= 1;
  }
  // If the peak only follows the mean, rounding errors are all that is left of it.
  constexpr double kRounding = 1e-9;
  if (sums.windows < kLeastWindows || !(peak_peak > kRounding * sums.peak_peak)) {
    return std::nullopt;
  }
  const double slope = peak_seconds / peak_peak;
  const double left = std::max(0.0, seconds_seconds - slope * peak_seconds);
  return Slope{.seconds = slope, .error = 2 * std::sqrt(left / freedom / peak_peak)};
}

}  // namespace

void AddSample(const StepSample& sample, StepMean& before, wire::SavedTime& sums) {
  const auto weight = static_cast<double>(sample.steps);
  const double peak = sample.peak_tokens - before.mean.peak_tokens;
  const double mean = sample.mean_tokens - before.mean.mean_tokens;
  const double seconds = sample.seconds - before.mean.seconds;
  const bool first = before.windows == 0;
  before.windows = std::min(before.windows + 1, kMeanOf);
  const double share = 1 / static_cast<double>(before.windows);
  before.mean.peak_tokens += share * peak;
  before.mean.mean_tokens += share * mean;
  before.mean.seconds += share * seconds;
  if (first) return;
  ++sums.windows;
  sums.peak_peak += weight * peak * peak;
  sums.peak_mean += weight * peak * mean;
  sums.mean_mean += weight * mean * mean;
  sums.peak_seconds += weight * peak * seconds;
  sums.mean_seconds += weight * mean * seconds;
  sums.seconds_seconds += weight * seconds * seconds;
}

TokenTime TokenTimeOf(const wire::SavedTime& sums) {
  if (sums.token_seconds > 0) {
    return {.source = TokenTime::Source::kGiven, .seconds = sums.token_seconds};
  }
  if (!(sums.peak_tokens > 0) || !(sums.step_seconds > 0)) return {};
  const double whole_step = sums.step_seconds / sums.peak_tokens;
  const double assumed = kExpertsShareOfStep * whole_step;
  const std::optional<Slope> slope = SlopeOf(sums);
  if (!slope) {
    return {.source = TokenTime::Source::kAssumed, .seconds = assumed, .error = 1, .assumption = 1};
  }
  const double measured = std::clamp(slope->seconds, 0.0, whole_step);
  const double both = std::hypot(slope->error, assumed);
  const double certain = std::pow(assumed / both, 2);  // the slope's share
  const double seconds = certain * measured + (1 - certain) * assumed;
  // Not the root of the variances: the assumption is the same for all windows of a job.
  const double error = certain * slope->error + (1 - certain) * assumed;
  const bool is_known = seconds > 0 && error <= kMostError * seconds;
  return {.source = is_known ? TokenTime::Source::kMeasured : TokenTime::Source::kAssumed,
          .seconds = seconds,
          .error = seconds > 0 ? error / seconds : 1,
          .assumption = 1 - certain};
}

double CountedPauses(const Account& account) {
  const bool priced = TokenTimeOf(account.saved).source != TokenTime::Source::kNone;
  return priced ? account.pause_seconds : account.earlier_pauses;
}

double GrossSeconds(const Account& account) {
  return account.saved.earlier_seconds +
         account.saved_peak_tokens * TokenTimeOf(account.saved).seconds;
}

bool IsAssumed(const Account& account) {
  return account.saved.earlier_assumed ||
         (account.saved_peak_tokens != 0 &&
          TokenTimeOf(account.saved).source == TokenTime::Source::kAssumed);
}

void CloseRun(Account& account) {
  const double pauses = CountedPauses(account);
  account = {
      .pause_seconds = pauses,
      .earlier_pauses = pauses,
      .saved = {.earlier_seconds = GrossSeconds(account), .earlier_assumed = IsAssumed(account)}};
}

std::string TokenTimeText(const wire::SavedTime& sums) {
  const TokenTime time = TokenTimeOf(sums);
  if (time.source == TokenTime::Source::kNone) return "";
  const std::string costs = absl::StrCat("a token costs ", SecondsText(time.seconds));
  if (time.source == TokenTime::Source::kGiven) return costs + ", as cost.token_ns states";
  const double percent = std::ceil(100 * time.error);
  const std::string price = percent > 100 ? costs + " +- above 100 %, "
                                          : absl::StrFormat("%s +- %.0f %%, ", costs, percent);
  const int64_t assumed = std::llround(100 * time.assumption);
  if (assumed == 100) {
    return price + "which assumes that experts take half of a step: step times do not show it yet";
  }
  const std::string windows = absl::StrCat("the step times of ", sums.windows, " windows");
  if (assumed == 0) return absl::StrCat(price, "measured from ", windows);
  return absl::StrCat(price, 100 - assumed, " % from ", windows, " and ", assumed,
                      " % from the assumption that experts take half of a step");
}

}  // namespace eplb::core
