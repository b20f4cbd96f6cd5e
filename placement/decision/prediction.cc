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

constexpr double kLeastError = 0.005;  // smallest error of a mean over a window's tokens
constexpr size_t kNewest = 5;          // ratios that a prediction goes by; its error goes by all
constexpr size_t kTold = 9;            // most outcomes in a sentence

double MedianOf(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string SeenText(const Forecast& forecast) {
  if (!forecast.seen) return "";
  const bool missed =
      forecast.error && std::abs(*forecast.seen - forecast.predicted) > *forecast.error;
  return absl::StrFormat(", seen %.3f%s", *forecast.seen, missed ? " outside the error" : "");
}

// Without what was seen.
std::string FiguresText(const Forecast& forecast) {
  if (forecast.predicted <= 0) return "predicted: not known";
  if (forecast.computed) return absl::StrFormat("computed %.3f", forecast.predicted);
  if (!forecast.error) return absl::StrFormat("predicted %.3f +- unknown", forecast.predicted);
  return absl::StrFormat("predicted %.3f +- %.3f", forecast.predicted, *forecast.error);
}

}  // namespace

std::string PredictedText(const Forecast& forecast) {
  return absl::StrCat(FiguresText(forecast), SeenText(forecast));
}

std::string ForecastText(const Forecast& forecast) {
  const std::string figures = FiguresText(forecast);
  if (forecast.measured <= 0) {
    return absl::StrCat("measured: not known, ", figures, SeenText(forecast));
  }
  std::string gain;
  if (!forecast.computed && forecast.predicted > 0) {
    const bool is_noise = forecast.error && std::abs(forecast.gain()) <= *forecast.error;
    gain = absl::StrFormat(", gain %+.3f%s", forecast.gain(), is_noise ? " within the error" : "");
  }
  return absl::StrFormat("measured %.3f, %s%s%s", forecast.measured, figures, gain,
                         SeenText(forecast));
}

double PredictionOutcome::off() const { return std::abs(seen - predicted.balancedness); }

double PredictionRecord::BatchScale() const {
  return batch_scales_.empty() ? 1 : MedianOf({batch_scales_.begin(), batch_scales_.end()});
}

Prediction PredictionRecord::Predict(double computed, double in_force, double measured) const {
  // Between nothing and all of the gain.
  const double best = std::min(1.0, BatchScale() * computed);
  const double now = measured > 0 ? measured : BatchScale() * in_force;
  const double prior = (best + now) / 2;
  if (compared_.empty()) {
    return {.balancedness = prior, .prior = prior};
  }
  const auto newest = static_cast<std::ptrdiff_t>(std::min(compared_.size(), kNewest));
  std::vector<double> ratios;
  for (auto one = compared_.end() - newest; one != compared_.end(); ++one) {
    ratios.push_back(one->seen / one->computed);
  }
  const double ratio = MedianOf(std::move(ratios));
  const auto n = static_cast<double>(compared_.size());
  const auto told = [&](double of, double before) { return (n * ratio * of + before) / (n + 1); };
  double most = 0;
  for (const Compared& one : compared_) {
    most = std::max(most, std::abs(one.seen - told(one.computed, one.prior)));
  }
  const double predicted = std::min(1.0, told(computed, prior));
  // The next of n values lies beyond all that are known about once in n times, so few are widened.
  const double error = (1 + 1 / n) * most + std::abs(best - predicted) / (2 * n);
  return {.balancedness = predicted,
          .error = std::max(kLeastError, error),
          .evidence = static_cast<int64_t>(compared_.size()),
          .prior = prior};
}

void PredictionRecord::Begin(const Placement& placement, double computed,
                             const Prediction& predicted) {
  if (!pending_.empty() && pending_.back().windows == 0) pending_.pop_back();
  pending_.push_back({.placement = placement, .computed = computed, .predicted = predicted});
}

absl::Status PredictionRecord::Observe(const PassedWindow& window) {
  double scale = BatchScale();
  if (window.split == SplitMode::kBatch && window.measured > 0 && window.ran != nullptr) {
    EPLB_ASSIGN_OR_RETURN(const Evaluation as_one,
                          EvaluateBatch(window.load, *window.ran, window.speeds));
    if (as_one.mean_balancedness) {
      scale = window.measured / *as_one.mean_balancedness;
      batch_scales_.push_back(scale);
      if (batch_scales_.size() > kMaxOutcomes) batch_scales_.pop_front();
    }
  }
  for (Pending& pending : pending_) ++pending.windows;
  if (pending_.empty() || pending_.front().windows <= latency_) return absl::OkStatus();
  const Pending due = std::move(pending_.front());
  pending_.pop_front();
  EPLB_ASSIGN_OR_RETURN(const Evaluation evaluation,
                        EvaluateSplit(window.load, due.placement, window.split, window.speeds));
  if (!evaluation.mean_balancedness) return absl::OkStatus();
  const double seen = std::min(1.0, scale * *evaluation.mean_balancedness);
  outcomes_.push_back({.predicted = due.predicted, .seen = seen});
  if (outcomes_.back().is_judged()) ++num_judged_;
  if (outcomes_.back().holds()) ++num_held_;
  if (outcomes_.size() > kMaxOutcomes) outcomes_.pop_front();
  if (due.computed <= 0) return absl::OkStatus();
  compared_.push_back({.computed = due.computed, .prior = due.predicted.prior, .seen = seen});
  if (compared_.size() > kMaxOutcomes) compared_.pop_front();
  return absl::OkStatus();
}

std::string PredictionRecord::EvidenceText() const {
  if (outcomes_.empty()) return "no earlier prediction to judge by";
  const size_t told = std::min(outcomes_.size(), kTold);
  double most = 0;
  for (size_t i = outcomes_.size() - told; i < outcomes_.size(); ++i) {
    most = std::max(most, outcomes_[i].off());
  }
  return absl::StrFormat("%s within %.3f",
                         told == 1 ? std::string("the last prediction was")
                                   : absl::StrCat("the last ", told, " predictions were"),
                         most);
}

}  // namespace eplb
