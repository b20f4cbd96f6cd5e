#include "placement/decision/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "placement/align.h"
#include "placement/policies/registry.h"
#include "placement/split/batch_split.h"
#include "placement/topology.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

// Two experts on two GPUs: the balancedness of a window is its mean / its larger cell.
Placement Pair() {
  return Placement::Static(
      Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 2, .num_gpus = 2}).value());
}

// Expert 0 on both GPUs, expert 1 on the first: what is split exactly is even while 1 is small.
Placement OnBoth() {
  const Topology topology =
      Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 4, .num_gpus = 2}).value();
  IndexMatrix slots(1, 4);
  slots << 0, 1, 0, 0;
  return Placement::FromSlots(topology, slots).value();
}

Load WindowOf(int64_t larger, int64_t smaller) {
  LoadMatrix counts(1, 2);
  counts << larger, smaller;
  return Load::FromCounts(counts).value();
}

// A decision on a load on which the current placement has .6.
void Decide(PredictionRecord& record, double computed = 1) {
  record.Begin(Pair(), computed, record.Predict(computed, 0.6));
}

TEST(ForecastTest, BothFiguresAreNamedAndAGainHasItsSign) {
  EXPECT_EQ(ForecastText({.measured = 0.608, .predicted = 0.741, .error = 0.03}),
            "measured 0.608, predicted 0.741 +- 0.030, gain +0.133");
  EXPECT_EQ(ForecastText({.measured = 0.741, .predicted = 0.608, .error = 0.03}),
            "measured 0.741, predicted 0.608 +- 0.030, gain -0.133");
}

TEST(ForecastTest, AGainThatIsNoLargerThanItsErrorIsToldAsSuch) {
  EXPECT_EQ(ForecastText({.measured = 0.734, .predicted = 0.695, .error = 0.245}),
            "measured 0.734, predicted 0.695 +- 0.245, gain -0.039 within the error");
  EXPECT_EQ(ForecastText({.measured = 0.608, .predicted = 0.691, .error = 0.103}),
            "measured 0.608, predicted 0.691 +- 0.103, gain +0.083 within the error");
}

TEST(ForecastTest, WhatFollowedStandsBesideItAndAMissIsNamed) {
  Forecast forecast{.measured = 0.6, .predicted = 0.74, .error = 0.03, .seen = 0.72};
  EXPECT_EQ(ForecastText(forecast),
            "measured 0.600, predicted 0.740 +- 0.030, gain +0.140, seen 0.720");
  EXPECT_EQ(PredictedText(forecast), "predicted 0.740 +- 0.030, seen 0.720");
  forecast.seen = 0.6;
  EXPECT_EQ(PredictedText(forecast), "predicted 0.740 +- 0.030, seen 0.600 outside the error");
}

TEST(ForecastTest, WhatIsNotKnownIsNeitherMeasuredNorPredicted) {
  EXPECT_EQ(ForecastText({.predicted = 0.741, .error = 0.03}),
            "measured: not known, predicted 0.741 +- 0.030");
  EXPECT_EQ(ForecastText({.measured = 0.608, .predicted = 0.741, .computed = true}),
            "measured 0.608, computed 0.741");
}

TEST(ForecastTest, WhatWasNeitherPredictedNorComputedIsNotKnown) {
  EXPECT_EQ(ForecastText({.measured = 0.608, .computed = true}),
            "measured 0.608, predicted: not known");
  EXPECT_EQ(PredictedText({.seen = 0.5}), "predicted: not known, seen 0.500");
}

TEST(ForecastTest, AnErrorThatNoPredictionWasComparedForIsUnknown) {
  Forecast forecast{.measured = 0.608, .predicted = 0.741};
  EXPECT_EQ(ForecastText(forecast), "measured 0.608, predicted 0.741 +- unknown, gain +0.133");
  forecast.seen = 0.5;
  EXPECT_EQ(PredictedText(forecast), "predicted 0.741 +- unknown, seen 0.500") << "no miss either";
}

TEST(PredictionRecordTest, BeforeAnyEvidenceItLiesBetweenNothingAndTheWholeGain) {
  const PredictionRecord record;
  const Prediction first = record.Predict(1.0, 0.6);
  EXPECT_DOUBLE_EQ(first.balancedness, 0.8);
  EXPECT_FALSE(first.error.has_value()) << "nothing was compared";
  EXPECT_EQ(first.evidence, 0);
  EXPECT_EQ(record.EvidenceText(), "no earlier prediction to judge by");
  EXPECT_DOUBLE_EQ(record.Predict(1.0, 0.6, 0.5).balancedness, 0.75) << "from what was measured";
}

TEST(PredictionRecordTest, AWindowWithoutTokensIsComparedWithNothing) {
  PredictionRecord record;
  Decide(record);
  ASSERT_TRUE(record.Observe({.load = WindowOf(0, 0)}).ok());
  EXPECT_EQ(record.outcomes().size(), 0U);
  ASSERT_TRUE(record.Observe({.load = WindowOf(100, 50)}).ok());
  EXPECT_EQ(record.outcomes().size(), 0U) << "the prediction was of the idle window";
}

TEST(PredictionRecordTest, WhatIsComputedIsScaledByWhatEarlierOnesReached) {
  PredictionRecord record;
  for (int i = 0; i < 8; ++i) {
    Decide(record);
    ASSERT_TRUE(record.Observe({.load = WindowOf(100, 50)}).ok());  // .75
  }
  const Prediction next = record.Predict(1.0, 0.6);
  EXPECT_NEAR(next.balancedness, (8 * 0.75 + 0.8) / 9, 1e-9) << "the first guess counts once";
  EXPECT_LE(next.error.value(), 0.05);
  EXPECT_EQ(next.evidence, 8);
  EXPECT_EQ(record.num_judged(), 7) << "the first had no error";
  EXPECT_EQ(record.EvidenceText(), "the last 8 predictions were within 0.050") << "the first";
}

TEST(PredictionRecordTest, AShiftIsMissedOnceAndThenWidensTheError) {
  PredictionRecord record;
  for (int i = 0; i < 8; ++i) {
    Decide(record);
    ASSERT_TRUE(record.Observe({.load = WindowOf(100, 90)}).ok());
  }
  const double before = record.Predict(1.0, 0.6).error.value();
  Decide(record);
  ASSERT_TRUE(record.Observe({.load = WindowOf(100, 10)}).ok());
  EXPECT_FALSE(record.outcomes().back().holds());
  EXPECT_GT(record.Predict(1.0, 0.6).error.value(), before + 0.3);
}

TEST(PredictionRecordTest, ADecisionThatIsInForceLaterIsComparedWithALaterWindow) {
  PredictionRecord record(1);
  Decide(record);
  ASSERT_TRUE(record.Observe({.load = WindowOf(100, 0)}).ok());
  EXPECT_TRUE(record.outcomes().empty());
  ASSERT_TRUE(record.Observe({.load = WindowOf(100, 60)}).ok());
  ASSERT_EQ(record.outcomes().size(), 1u);
  EXPECT_NEAR(record.outcomes().back().seen, 0.8, 1e-12);
}

TEST(PredictionRecordTest, OfTwoDecisionsInOneWindowTheSecondIsCompared) {
  PredictionRecord record;
  Decide(record);
  Decide(record, 0.5);
  ASSERT_TRUE(record.Observe({.load = WindowOf(100, 100)}).ok());
  ASSERT_EQ(record.outcomes().size(), 1u);
  EXPECT_DOUBLE_EQ(record.outcomes().back().predicted.balancedness, 0.55);
}

TEST(PredictionRecordTest, AWindowOfAnotherShapeIsRefused) {
  PredictionRecord record;
  Decide(record);
  const Load other = Load::FromCounts(LoadMatrix::Ones(1, 3)).value();
  EXPECT_EQ(record.Observe({.load = other}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(PredictionRecordTest, OfBatchesThatWereMeasuredTheMeasuredFigureIsWhatIsSeen) {
  PredictionRecord record;
  const Placement shared = OnBoth();
  record.Begin(shared, 1, record.Predict(1, 0.6));
  // One batch of expert 0 and one of expert 1: as one batch they are even.
  const Load window = WindowOf(100, 100);
  ASSERT_EQ(EvaluateBatch(window, shared)->mean_balancedness, 1);
  const std::vector<Load> batches = {WindowOf(100, 0), WindowOf(0, 100)};
  const double measured = *EvaluateBatches(batches, shared)->mean_balancedness;  // 100 / 150
  ASSERT_NEAR(measured, 2.0 / 3, 1e-12);
  ASSERT_TRUE(
      record
          .Observe(
              {.load = window, .split = SplitMode::kBatch, .measured = measured, .ran = &shared})
          .ok());
  EXPECT_NEAR(record.outcomes().back().seen, measured, 1e-12);
  EXPECT_NEAR(record.Predict(1, 1).balancedness, measured, 1e-12) << "the prior, too";
}

TEST(PredictionRecordTest, TheScaleOfBatchesIsUsedBeforeTheFirstOutcome) {
  PredictionRecord record;
  const Placement shared = OnBoth();
  const Load window = WindowOf(100, 100);
  ASSERT_TRUE(
      record.Observe({.load = window, .split = SplitMode::kBatch, .measured = 0.8, .ran = &shared})
          .ok());
  EXPECT_NEAR(record.Predict(1, 0.5).balancedness, (0.8 * 1 + 0.8 * 0.5) / 2, 1e-12);
  EXPECT_NEAR(record.Predict(1, 0.5, 0.6).balancedness, (0.8 + 0.6) / 2, 1e-12);
}

// A run of windows of several batches, which the ranks split one by one.
class BatchRun {
 public:
  BatchRun(uint64_t seed, int32_t drift_percent) : random_(seed), drift_(drift_percent) {}

  std::vector<Load> Next() {
    std::vector<Load> batches;
    for (int64_t& weight : weights_) {
      weight = std::clamp<int64_t>(weight * (100 + Pick(random_, -drift_, drift_)) / 100, 20, 2000);
    }
    for (int batch = 0; batch < 4; ++batch) {
      LoadMatrix counts(1, kExperts);
      for (int expert = 0; expert < kExperts; ++expert) {
        counts(0, expert) = weights_[static_cast<size_t>(expert)] * Pick(random_, 40, 160) / 100;
      }
      batches.push_back(Load::FromCounts(counts).value());
    }
    return batches;
  }

  static constexpr int kExperts = 16;

 private:
  Random random_;
  int32_t drift_;
  std::vector<int64_t> weights_ = std::vector<int64_t>(kExperts, 200);
};

Load SumOfBatches(const std::vector<Load>& batches) {
  LoadMatrix sum = batches.front().counts();
  for (size_t i = 1; i < batches.size(); ++i) sum += batches[i].counts();
  return Load::FromCounts(sum).value();
}

// Each window ends with a decision that is active one window later, as in the daemon; what was
// predicted is compared with what the batches of that window gave.
struct KeptErrors {
  int held = 0;
  int all = 0;
  double bias = 0;  // mean of predicted - measured
};
KeptErrors RunBatches(uint64_t seed, int32_t drift_percent, bool calibrated) {
  BatchRun run(seed, drift_percent);
  const Topology topology =
      Topology::Make(
          {.num_layers = 1, .num_experts = BatchRun::kExperts, .num_slots = 20, .num_gpus = 4})
          .value();
  const std::unique_ptr<Policy> policy = MakePolicy("incremental", {}).value();
  PredictionRecord record(1);
  Placement in_force = Placement::Static(topology);
  std::deque<std::pair<Placement, Prediction>> coming;
  KeptErrors held;
  for (int t = 0; t < 60; ++t) {
    const std::vector<Load> batches = run.Next();
    const Load window = SumOfBatches(batches);
    const double measured = *EvaluateBatches(batches, in_force)->mean_balancedness;
    if (coming.size() == 2) {
      const Prediction& due = coming.front().second;
      ++held.all;
      held.held += std::abs(due.balancedness - measured) <= due.error ? 1 : 0;
      held.bias += due.balancedness - measured;
      coming.pop_front();
    }
    PassedWindow passed{.load = window, .split = SplitMode::kBatch};
    if (calibrated) passed.measured = measured;
    if (calibrated) passed.ran = &in_force;
    EXPECT_TRUE(record.Observe(passed).ok());
    const Placement ran = in_force;
    if (!coming.empty()) in_force = coming.back().first;
    Placement next = SolveAligned(*policy, {.load = window,
                                            .topology = topology,
                                            .previous = &in_force,
                                            .split = SplitMode::kBatch,
                                            .recent = {&window, 1}})
                         .value();
    const double computed = *EvaluateBatch(window, next)->mean_balancedness;
    const Prediction prediction = record.Predict(
        computed, *EvaluateBatch(window, ran)->mean_balancedness, calibrated ? measured : 0);
    record.Begin(next, computed, prediction);
    coming.emplace_back(std::move(next), prediction);
  }
  held.bias /= held.all;
  return held;
}

TEST(PredictionRecordTest, OfAJobThatSplitsBatchesTheErrorsHold) {
  constexpr double kLeastHeld = 0.85;
  for (const int32_t drift : {2, 10, 25}) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const KeptErrors held = RunBatches(seed, drift, true);
      EXPECT_GE(held.held, kLeastHeld * held.all) << "drift " << drift << ", seed " << seed;
      EXPECT_LT(std::abs(held.bias), 0.02) << "drift " << drift << ", seed " << seed;
    }
  }
}

TEST(PredictionRecordTest, WindowsAsOneBatchAlonePromiseMoreThanTheirBatchesGive) {
  const KeptErrors held = RunBatches(1, 2, false);
  EXPECT_GT(held.bias, 0.03);
  EXPECT_LT(held.held, 0.85 * held.all);
}

}  // namespace
}  // namespace eplb
