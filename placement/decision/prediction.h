// What a placement will reach, told from what earlier predictions of the same job turned out to be.
#ifndef EPLB_PLACEMENT_DECISION_PREDICTION_H_
#define EPLB_PLACEMENT_DECISION_PREDICTION_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"

#include "placement/evaluate.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Balancedness of the first whole window under a placement, expected within +- error.
struct Prediction {
  double balancedness = 0;
  double error = 0;
  int64_t evidence = 0;  // earlier predictions that it was told from
};

// A prediction, and what followed.
struct PredictionOutcome {
  Prediction predicted;
  double seen = 0;

  double off() const;  // |seen - predicted|
  bool holds() const { return off() <= predicted.error; }
};

// A policy fits its placement to the load that it is given, so what is computed on that load is too
// good for any other. This record compares what was computed with what the placement reached on
// later windows, whether it was taken or not, and scales what is computed now by the median of the
// newest of these ratios. The error covers all but the rarest of them. Threads: a value, not safe.
// Deterministic. Memory: latency + 1 placements.
class PredictionRecord {
 public:
  static constexpr size_t kMaxOutcomes = 16;

  // latency: whole windows that pass between a decision and the first whole window under it, >= 0.
  explicit PredictionRecord(int32_t latency = 0) : latency_(latency) {}

  // A decision computed `computed` for a placement on the load that it goes by, on which the one in
  // force has `in_force`.
  Prediction Predict(double computed, double in_force) const;
  // The same, and keeps the placement to compare. One decision a window: a second one replaces it.
  Prediction Begin(const Placement& placement, double computed, double in_force);

  // A window passed. errors: InvalidArgument when shapes differ. cost: O(L * S) where one is due.
  absl::Status Observe(const Load& window, SplitMode split, const GpuSpeeds* speeds = nullptr);

  // Newest last.
  const std::deque<PredictionOutcome>& outcomes() const { return outcomes_; }
  int64_t num_outcomes() const { return num_outcomes_; }
  int64_t num_held() const { return num_held_; }

  // "0.741 +- 0.030, the last 9 predictions were within 0.020", or "0.741 +- 0.130, the first
  // prediction of this job": for a sentence.
  std::string Text(const Prediction& prediction) const;

 private:
  struct Pending {
    Placement placement;
    double computed = 0;
    Prediction predicted;
    int32_t windows = 0;  // since
  };

  int32_t latency_ = 0;
  std::deque<Pending> pending_;
  std::deque<PredictionOutcome> outcomes_;
  std::deque<double> ratios_;  // seen / computed, newest last
  int64_t num_outcomes_ = 0;
  int64_t num_held_ = 0;
};

}  // namespace eplb

#endif  // EPLB_PLACEMENT_DECISION_PREDICTION_H_
