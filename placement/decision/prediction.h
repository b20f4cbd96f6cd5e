// Prediction of what a placement reaches, from the outcomes of the job's earlier predictions.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/status.h"

#include "placement/evaluate.h"
#include "placement/load.h"
#include "placement/placement.h"

namespace eplb {

// Balancedness of the first whole window under a placement, expected within +- error. The error is
// absent until an earlier prediction was compared with what followed.
struct Prediction {
  double balancedness = 0;
  std::optional<double> error = std::nullopt;
  int64_t evidence = 0;  // earlier predictions that it was told from
  double prior = 0;      // prediction that ignores the evidence
};

// A prediction, and what followed.
struct PredictionOutcome {
  Prediction predicted;
  double seen = 0;

  double off() const;  // |seen - predicted|
  bool is_judged() const { return predicted.error.has_value(); }
  bool holds() const { return is_judged() && off() <= *predicted.error; }
};

// Balancedness figures of a decision, all of whole windows under the placements that ran, or will
// run.
struct Forecast {
  double measured = 0;   // mean over the windows that the decision covers; 0: not known
  double predicted = 0;  // first whole window after the decision; 0: not known
  std::optional<double> error = std::nullopt;  // see Prediction::error
  bool computed = false;  // `predicted` is no prediction, but computed on the decision's load
  std::optional<double> seen = std::nullopt;  // measured after the decision

  double gain() const { return predicted - measured; }
};

// "measured 0.608, predicted 0.741 +- 0.030, gain +0.133, seen 0.750", as far as it is known; "gain
// -0.012 within the error" where the error is no less than the gain, and "predicted 0.741 +-
// unknown" where no earlier prediction was compared. Every view uses these two.
std::string ForecastText(const Forecast& forecast);
// Its part "predicted 0.741 +- 0.030, seen 0.750"; "seen 0.600 outside the error" of a miss.
std::string PredictedText(const Forecast& forecast);

// A window that passed.
struct PassedWindow {
  const Load& load;
  SplitMode split = SplitMode::kEqual;
  const GpuSpeeds* speeds = nullptr;
  // With kBatch what the splits of the window's own batches gave, under the one placement that all
  // of its steps ran under; 0 and null: not known.
  double measured = 0;
  const Placement* ran = nullptr;
};

// A policy fits its placement to the load that it is given, so what is computed on that load is too
// good for any other. This record compares what was computed with what the placement reached on
// later windows, whether it was taken or not, and scales what is computed now by the median of the
// newest of these ratios. What would be predicted without any, the middle between what is measured
// now and what is computed, counts as one more. The error covers what the same rule would have
// missed of any that is kept: on the recorded trace and on drawn loads 95 % are within it. The
// first prediction has no error, because nothing was compared yet.
//
// A window that is split as if it were one batch is more even than its batches are, each with its
// own fullest GPU. Where the job measured its batches the record scales windows by what that gave,
// so that it compares, and predicts, what is measured; of a placement that was taken exactly so.
// Threads: a value, not safe. Deterministic. Memory: latency + 1 placements.
class PredictionRecord {
 public:
  static constexpr size_t kMaxOutcomes = 16;

  // latency: whole windows that pass between a decision and the first whole window under it, >= 0.
  explicit PredictionRecord(int32_t latency = 0) : latency_(latency) {}

  // A decision computed `computed` for a placement, and `in_force` for the current one, on the
  // load that it goes by. measured: as Forecast's; 0: `in_force` stands for it.
  Prediction Predict(double computed, double in_force, double measured = 0) const;
  // Keeps a placement and what was predicted of it, to compare. One decision a window: a second one
  // replaces it.
  void Begin(const Placement& placement, double computed, const Prediction& predicted);

  // Drops the prediction of a window without tokens, because there is nothing to compare it with.
  // errors: InvalidArgument when shapes differ. cost: O(L * S), and of batches an EvaluateBatch,
  // where one is due; and an EvaluateBatch of a window that was measured.
  absl::Status Observe(const PassedWindow& window);

  // Newest last.
  const std::deque<PredictionOutcome>& outcomes() const { return outcomes_; }
  // Outcomes whose prediction had an error, and those of them that were within it.
  int64_t num_judged() const { return num_judged_; }
  int64_t num_held() const { return num_held_; }

  // "the last 9 predictions were within 0.020", "no earlier prediction to judge by": for a
  // sentence.
  std::string EvidenceText() const;

 private:
  double BatchScale() const;

  struct Pending {
    Placement placement;
    double computed = 0;
    Prediction predicted;
    int32_t windows = 0;  // since
  };
  struct Compared {
    double computed = 0;
    double prior = 0;
    double seen = 0;
  };

  int32_t latency_ = 0;
  std::deque<Pending> pending_;
  std::deque<PredictionOutcome> outcomes_;
  std::deque<Compared> compared_;    // newest last
  std::deque<double> batch_scales_;  // measured of batches / computed of the window, newest last
  int64_t num_judged_ = 0;
  int64_t num_held_ = 0;
};

}  // namespace eplb
