#include "placement/decision/prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "placement/topology.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

// Two experts on two GPUs: the balancedness of a window is its mean / its larger cell.
Placement Pair() {
  return Placement::Static(
      Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 2, .num_gpus = 2}).value());
}

Load WindowOf(int64_t larger, int64_t smaller) {
  LoadMatrix counts(1, 2);
  counts << larger, smaller;
  return Load::FromCounts(counts).value();
}

TEST(PredictionRecordTest, BeforeAnyEvidenceItLiesBetweenNothingAndTheWholeGain) {
  const PredictionRecord record;
  const Prediction first = record.Predict(1.0, 0.6);
  EXPECT_DOUBLE_EQ(first.balancedness, 0.8);
  EXPECT_GE(first.error, 0.2);
  EXPECT_EQ(first.evidence, 0);
  EXPECT_THAT(record.Text(first), HasSubstr("0.800 +- 0.220, the first prediction of this job"));
}

TEST(PredictionRecordTest, WhatIsComputedIsScaledByWhatEarlierOnesReached) {
  PredictionRecord record;
  for (int i = 0; i < 8; ++i) {
    record.Begin(Pair(), 1.0, 0.6);
    ASSERT_TRUE(record.Observe(WindowOf(100, 50), SplitMode::kEqual).ok());  // .75
  }
  const Prediction next = record.Predict(1.0, 0.6);
  EXPECT_NEAR(next.balancedness, 0.75, 1e-9);
  EXPECT_LE(next.error, 0.05);
  EXPECT_EQ(next.evidence, 8);
  EXPECT_EQ(record.num_outcomes(), 8);
  EXPECT_THAT(record.Text(next), HasSubstr("the last 8 predictions were within"));
}

TEST(PredictionRecordTest, AShiftIsMissedOnceAndThenWidensTheError) {
  PredictionRecord record;
  for (int i = 0; i < 8; ++i) {
    record.Begin(Pair(), 1.0, 0.6);
    ASSERT_TRUE(record.Observe(WindowOf(100, 90), SplitMode::kEqual).ok());
  }
  const double before = record.Predict(1.0, 0.6).error;
  record.Begin(Pair(), 1.0, 0.6);
  ASSERT_TRUE(record.Observe(WindowOf(100, 10), SplitMode::kEqual).ok());
  EXPECT_FALSE(record.outcomes().back().holds());
  EXPECT_GT(record.Predict(1.0, 0.6).error, before + 0.3);
}

TEST(PredictionRecordTest, ADecisionThatIsInForceLaterIsComparedWithALaterWindow) {
  PredictionRecord record(1);
  record.Begin(Pair(), 1.0, 0.6);
  ASSERT_TRUE(record.Observe(WindowOf(100, 0), SplitMode::kEqual).ok());
  EXPECT_EQ(record.num_outcomes(), 0);
  ASSERT_TRUE(record.Observe(WindowOf(100, 60), SplitMode::kEqual).ok());
  ASSERT_EQ(record.num_outcomes(), 1);
  EXPECT_NEAR(record.outcomes().back().seen, 0.8, 1e-12);
}

TEST(PredictionRecordTest, OfTwoDecisionsInOneWindowTheSecondIsCompared) {
  PredictionRecord record;
  record.Begin(Pair(), 1.0, 0.6);
  record.Begin(Pair(), 0.5, 0.6);
  ASSERT_TRUE(record.Observe(WindowOf(100, 100), SplitMode::kEqual).ok());
  EXPECT_EQ(record.num_outcomes(), 1);
  EXPECT_DOUBLE_EQ(record.outcomes().back().predicted.balancedness, 0.55);
}

TEST(PredictionRecordTest, AWindowOfAnotherShapeIsRefused) {
  PredictionRecord record;
  record.Begin(Pair(), 1.0, 0.6);
  const Load other = Load::FromCounts(LoadMatrix::Ones(1, 3)).value();
  EXPECT_EQ(record.Observe(other, SplitMode::kEqual).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb
