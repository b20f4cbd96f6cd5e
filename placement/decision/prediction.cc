#include "placement/decision/prediction.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "placement/split/batch_split.h"

namespace eplb {
namespace {

constexpr double kLeastError = 0.005;  // of a mean over a window's tokens
constexpr double kFirstError = 0.02;   // besides the gain, before anything was compared
constexpr size_t kNewest = 5;          // ratios that the prediction goes by; the error goes by all
constexpr size_t kRarest = 16;         // of so many ratios the widest distance is left out
constexpr size_t kTold = 9;            // outcomes of a sentence

double MedianOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

double PredictionOutcome::off() const { return std::abs(seen - predicted.balancedness); }

Prediction PredictionRecord::Predict(double computed, double in_force) const {
  if (ratios_.empty()) {
    // Between nothing and all of the gain.
    return {.balancedness = (computed + in_force) / 2,
            .error = std::abs(computed - in_force) / 2 + kFirstError};
  }
  const auto newest = static_cast<std::ptrdiff_t>(std::min(ratios_.size(), kNewest));
  const double ratio = MedianOf({ratios_.end() - newest, ratios_.end()});
  std::vector<double> distances;
  for (const double one : ratios_) distances.push_back(std::abs(one - ratio));
  std::sort(distances.begin(), distances.end());
  const size_t left_out = distances.size() >= kRarest ? 1 : 0;
  // The next of n values lies beyond all that are known about once in n times, so few are widened.
  const auto n = static_cast<double>(distances.size());
  const double width =
      (1 + 1 / n) * distances[distances.size() - 1 - left_out] + std::abs(1 - ratio) / n;
  const double predicted = std::min(1.0, ratio * computed);
  return {.balancedness = predicted,
          .error = std::max(kLeastError, width * computed),
          .evidence = static_cast<int64_t>(distances.size())};
}

Prediction PredictionRecord::Begin(const Placement& placement, double computed, double in_force) {
  const Prediction predicted = Predict(computed, in_force);
  if (!pending_.empty() && pending_.back().windows == 0) pending_.pop_back();
  pending_.push_back({.placement = placement, .computed = computed, .predicted = predicted});
  return predicted;
}

absl::Status PredictionRecord::Observe(const Load& window, SplitMode split,
                                       const GpuSpeeds* speeds) {
  for (Pending& pending : pending_) ++pending.windows;
  if (pending_.empty() || pending_.front().windows <= latency_) return absl::OkStatus();
  const Pending due = std::move(pending_.front());
  pending_.pop_front();
  EPLB_ASSIGN_OR_RETURN(const Evaluation seen, EvaluateSplit(window, due.placement, split, speeds));
  outcomes_.push_back({.predicted = due.predicted, .seen = seen.mean_balancedness});
  ++num_outcomes_;
  if (outcomes_.back().holds()) ++num_held_;
  if (outcomes_.size() > kMaxOutcomes) outcomes_.pop_front();
  if (due.computed > 0) ratios_.push_back(seen.mean_balancedness / due.computed);
  if (ratios_.size() > kMaxOutcomes) ratios_.pop_front();
  return absl::OkStatus();
}

std::string PredictionRecord::Text(const Prediction& prediction) const {
  const std::string figures =
      absl::StrFormat("%.3f +- %.3f", prediction.balancedness, prediction.error);
  if (outcomes_.empty()) return absl::StrCat(figures, ", the first prediction of this job");
  const size_t told = std::min(outcomes_.size(), kTold);
  double most = 0;
  for (size_t i = outcomes_.size() - told; i < outcomes_.size(); ++i) {
    most = std::max(most, outcomes_[i].off());
  }
  return absl::StrFormat("%s, %s within %.3f", figures,
                         told == 1 ? std::string("the last prediction was")
                                   : absl::StrCat("the last ", told, " predictions were"),
                         most);
}

}  // namespace eplb
