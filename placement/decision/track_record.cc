#include "placement/decision/track_record.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status_macros.h"
#include "placement/decision/cost.h"
#include "placement/split/batch_split.h"

namespace eplb {

void SavedTokens::Add(double saved, double num_steps) {
  windows += 1;
  steps += num_steps;
  sum = Finite(sum + saved);
  sum_squares = Finite(sum_squares + saved * saved);
}

double SavedTokens::Low() const {
  if (windows == 0) return 0;
  const double n = windows + 1;
  const double mean = sum / n;
  const double variance = std::max(0.0, sum_squares - n * mean * mean) / (n - 1);
  return Finite(n * (mean - std::sqrt(variance / n)));
}

double SavedTokens::WorstPerStep() const {
  if (windows < 2) return -std::numeric_limits<double>::max();
  const double mean = sum / windows;
  const double variance = std::max(0.0, sum_squares - windows * mean * mean) / (windows - 1);
  return Finite((mean - 2 * std::sqrt(variance)) * windows / steps);
}

absl::Status TrackRecord::Observe(const Load& window, int64_t num_steps, const Placement& incumbent,
                                  SplitMode split, const GpuSpeeds* speeds) {
  Follow(incumbent);
  if (!start_.has_value()) start_ = incumbent;
  const auto steps = static_cast<double>(num_steps);
  EPLB_ASSIGN_OR_RETURN(const Evaluation in_force, EvaluateSplit(window, incumbent, split, speeds));
  for (Trial& trial : trials_) {
    EPLB_ASSIGN_OR_RETURN(const Evaluation tried,
                          EvaluateSplit(window, trial.candidate, split, speeds));
    trial.saved.Add(in_force.peak_load - tried.peak_load, steps);
  }
  EPLB_ASSIGN_OR_RETURN(const Evaluation unmoved, EvaluateSplit(window, *start_, split, speeds));
  const double saved = unmoved.peak_load - in_force.peak_load;
  incumbent_saved_.Add(saved, steps);
  start_tokens_ = Finite(start_tokens_ + unmoved.peak_load);
  saved_tokens_ = Finite(saved_tokens_ + saved);
  return absl::OkStatus();
}

void TrackRecord::BeginTrial(const Placement& candidate, const Placement& incumbent) {
  Follow(incumbent);
  if (candidate == incumbent) return;
  trials_.push_back({.candidate = candidate, .saved = {}});
  if (trials_.size() > kMaxTrials) ThinOut();
}

TrackRecord TrackRecord::Continue(const Sums& sums) {
  TrackRecord record;
  record.start_tokens_ = Finite(sums.start_tokens);
  record.saved_tokens_ = Finite(sums.saved_tokens);
  record.spent_seconds_ = Finite(sums.spent_seconds);
  return record;
}

void TrackRecord::Spend(double seconds) { spent_seconds_ = Finite(spent_seconds_ + seconds); }

std::vector<SavedTokens> TrackRecord::Trials(const Placement& incumbent) const {
  std::vector<SavedTokens> result;
  if (!incumbent_.has_value() || !(*incumbent_ == incumbent)) return result;
  for (const Trial& trial : trials_) result.push_back(trial.saved);
  return result;
}

void TrackRecord::Follow(const Placement& incumbent) {
  if (incumbent_.has_value() && *incumbent_ == incumbent) return;
  incumbent_ = incumbent;
  incumbent_saved_ = {};
  trials_.clear();
}

// Drops the trial whose neighbours are nearest in age, never the oldest or the newest.
void TrackRecord::ThinOut() {
  size_t dropped = 1;
  double least = std::numeric_limits<double>::max();
  for (size_t i = 1; i + 1 < trials_.size(); ++i) {
    const double ratio = (trials_[i - 1].saved.windows + 1) / (trials_[i + 1].saved.windows + 1);
    if (ratio < least) {
      least = ratio;
      dropped = i;
    }
  }
  trials_.erase(trials_.begin() + static_cast<std::ptrdiff_t>(dropped));
}

}  // namespace eplb
