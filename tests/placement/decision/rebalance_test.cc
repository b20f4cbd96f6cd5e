#include "placement/decision/rebalance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace eplb {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Topology Frame() {
  return Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 2}).value();
}

Placement Of(std::initializer_list<int32_t> row) {
  IndexMatrix slots(1, 4);
  slots.row(0) = Eigen::Map<const Eigen::Array<int32_t, 1, 4>>(row.begin());
  return Placement::FromSlots(Frame(), slots).value();
}

Load Tokens(std::initializer_list<int64_t> row) {
  LoadMatrix counts(1, 4);
  counts.row(0) = Eigen::Map<const Eigen::Array<int64_t, 1, 4>>(row.begin());
  return Load::FromCounts(counts).value();
}

// Experts 0 and 1 are hot and share GPU 0; `apart` parts them: 2000 tokens become 1100.
class RebalanceTest : public ::testing::Test {
 protected:
  RebalanceTest() {
    costs_.expert.weight_bytes = 1'000'000;
    costs_.intra_bytes_per_s = 1e9;
    costs_.token_seconds = 1e-6;  // so a window saves 0.9 ms, and both transfers take 1 ms
  }

  RebalanceInput Input() const {
    return {.load = hot_,
            .num_steps = 10,
            .incumbent = together_,
            .candidate = apart_,
            .min_gain = 0.05,
            .steps_to_next = 10,
            .costs = costs_,
            .record = record_};
  }
  RebalanceDecision Ask() const { return EvaluateRebalance(Input()).value(); }
  void Watch(int64_t windows) {
    for (int64_t i = 0; i < windows; ++i) {
      ASSERT_TRUE(record_.Observe(hot_, 10, together_).ok());
    }
  }

  const Load hot_ = Tokens({1000, 1000, 100, 100});
  const Placement together_ = Of({0, 1, 2, 3});
  const Placement apart_ = Of({0, 2, 1, 3});
  Costs costs_;
  TrackRecord record_;
};

TEST_F(RebalanceTest, StepsWithoutTokensMoveNothingAndPredictNothing) {
  const Load idle = Tokens({0, 0, 0, 0});
  const PredictionRecord predictions;
  const RebalanceDecision decision = EvaluateRebalance({.load = idle,
                                                        .incumbent = together_,
                                                        .candidate = apart_,
                                                        .costs = {},
                                                        .record = record_,
                                                        .predictions = &predictions})
                                         .value();
  EXPECT_FALSE(decision.rebalance);
  EXPECT_STREQ(NameOf(decision.rule), "no_tokens");
  EXPECT_EQ(decision.reason, "kept, these steps have no tokens");
  EXPECT_FALSE(decision.prediction.has_value());
  EXPECT_EQ(decision.balancedness_before, std::nullopt);
}

TEST_F(RebalanceTest, WithSpeedsTokensOfASlowGpuCountMore) {
  const GpuSpeeds speeds = GpuSpeeds::Make(2, std::vector<double>{1, 0.1}, {}).value();
  record_.BeginTrial(apart_, together_);
  ASSERT_TRUE(record_.Observe(hot_, 10, together_, SplitMode::kEqual, &speeds).ok());
  // 2000 tokens beside 200 / 0.1, or 1100 beside 1100 / 0.1.
  EXPECT_DOUBLE_EQ(record_.Trials(together_).at(0).sum, 2000 - 11000);
  EXPECT_DOUBLE_EQ(record_.start_tokens(), 2000);
  RebalanceInput input = Input();
  input.speeds = &speeds;
  const RebalanceDecision decision = EvaluateRebalance(input).value();
  EXPECT_FALSE(decision.rebalance);
  EXPECT_THAT(decision.reason, HasSubstr("would rise 450.0 %"));
}

TEST_F(RebalanceTest, WithoutPricesOnlyMinGainCounts) {
  costs_.token_seconds = 0;
  const RebalanceDecision decision = Ask();
  EXPECT_TRUE(decision.rebalance);
  EXPECT_EQ(decision.reason,
            "peak GPU load of these steps falls 45.0 % (balancedness computed 0.550 -> 1.000)");
  EXPECT_EQ(decision.migration.transfers, 2);
}

TEST_F(RebalanceTest, WithoutPricesABackTestThatProvedNothingKeeps) {
  costs_.token_seconds = 0;
  const LearnedGate gate{.in_use = false};
  RebalanceInput input = Input();
  input.learned = &gate;
  const RebalanceDecision decision = EvaluateRebalance(input).value();
  EXPECT_FALSE(decision.rebalance);
  EXPECT_THAT(decision.reason, StartsWith("kept, peak GPU load of these steps would fall 45.0 %"));
}

TEST_F(RebalanceTest, AGainJustBelowMinGainIsWrittenWithDigitsThatTellThemApart) {
  const auto ask = [&](double min_gain) {
    RebalanceInput input = Input();
    input.min_gain = min_gain;
    return EvaluateRebalance(input).value().reason;
  };
  EXPECT_THAT(ask(0.45012), StartsWith("kept, peak GPU load of these steps would fall 45.00 % ("));
  EXPECT_THAT(ask(0.45012), EndsWith(", less than min_gain, 45.01 %"));
  EXPECT_THAT(ask(0.6), EndsWith(", less than min_gain, 60.0 %"));
}

TEST_F(RebalanceTest, APlacementThatIsWorseWouldMakeTheLoadRise) {
  const RebalanceDecision decision = EvaluateRebalance({.load = hot_,
                                                        .num_steps = 10,
                                                        .incumbent = apart_,
                                                        .candidate = together_,
                                                        .min_gain = 0.05,
                                                        .steps_to_next = 10,
                                                        .costs = costs_,
                                                        .record = record_})
                                         .value();
  EXPECT_FALSE(decision.rebalance);
  EXPECT_EQ(decision.reason,
            "kept, peak GPU load of these steps would rise 81.8 % (balancedness computed 1.000 -> "
            "0.550)");
}

TEST_F(RebalanceTest, AGainThatNoLaterWindowProvedIsNotPaidFor) {
  EXPECT_FALSE(Ask().rebalance);
  EXPECT_THAT(Ask().reason, EndsWith(" for 1 ms of migration, but no later window has confirmed a "
                                     "saving yet; see: eplbctl help costs"));
  EXPECT_EQ(Ask().rule, RebalanceRule::kNoEvidence);
  Watch(100);
  EXPECT_FALSE(Ask().rebalance);
}

TEST_F(RebalanceTest, ItIsPaidWhenItHasBeenEarnedManyTimes) {
  record_.BeginTrial(apart_, together_);
  Watch(2);
  EXPECT_FALSE(Ask().rebalance);
  Watch(20);  // a fifth of 22 windows * 0.9 ms is above the way there and back
  const RebalanceDecision decision = Ask();
  EXPECT_TRUE(decision.rebalance) << decision.reason;
  EXPECT_EQ(decision.rule, RebalanceRule::kPays);
  EXPECT_THAT(decision.reason, StartsWith("rebalance saves "));
  EXPECT_THAT(decision.reason, HasSubstr(" over 220 steps for 1 ms of migration: peak GPU load "
                                         "of these steps falls 45.0 % (balancedness computed "
                                         "0.550 -> 1.000)"));
}

TEST_F(RebalanceTest, AHorizonCapsWhatAGainIsWorth) {
  record_.BeginTrial(apart_, together_);
  Watch(1000);
  EXPECT_TRUE(Ask().rebalance);
  costs_.horizon_steps = 10;  // 0.9 ms
  EXPECT_FALSE(Ask().rebalance);
}

// 100 steps save 9 ms, 10 steps 0.9 ms: less than the migration.
TEST_F(RebalanceTest, AHorizonAlsoCapsWhatTheBackTestCounts) {
  const LearnedGate gate{.realized = 1, .horizon_steps = 100};
  const auto ask = [&] {
    RebalanceInput input = Input();
    input.learned = &gate;
    return EvaluateRebalance(input).value();
  };
  EXPECT_TRUE(ask().rebalance);
  costs_.horizon_steps = 10;
  EXPECT_EQ(ask().rule, RebalanceRule::kCost);
  EXPECT_THAT(ask().reason, HasSubstr("over 10 steps"));
}

TEST_F(RebalanceTest, AnEmptyAccountBearsNoRisk) {
  record_.BeginTrial(apart_, together_);
  Watch(6);  // earned, but not many times
  EXPECT_FALSE(Ask().rebalance);
  EXPECT_EQ(Ask().rule, RebalanceRule::kRisk);
  EXPECT_THAT(Ask().reason,
              HasSubstr("ms are at stake (migration and return 2 ms, a bad interval 0 s), "
                        "more than the loss budget of "));
  record_.Spend(-1);  // a second to spare
  EXPECT_TRUE(Ask().rebalance);
}

// The saving varies, so that an interval may lose a little: that alone must not hold up a move that
// is earned many times over.
TEST_F(RebalanceTest, AMoveThatIsEarnedManyTimesIsNotHeldUpByASmallRisk) {
  const Load even = Tokens({600, 450, 500, 450});  // `apart` loses 50 tokens here
  record_.BeginTrial(apart_, together_);
  for (int i = 0; i < 12; ++i) {
    ASSERT_TRUE(record_.Observe(i % 3 == 2 ? even : hot_, 10, together_).ok());
  }
  costs_.expert.weight_bytes = 100'000;  // 0.1 ms of migration
  const SavedTokens trial = record_.Trials(together_).front();
  const double at_risk = -trial.WorstPerStep() * 10 * costs_.token_seconds;
  EXPECT_GT(at_risk, 0) << "an interval may lose";
  EXPECT_GT(2e-4 + at_risk, kAllowance * record_.start_tokens() * costs_.token_seconds)
      << "the loss budget alone does not bear it";
  const RebalanceDecision decision = Ask();
  EXPECT_TRUE(decision.rebalance) << decision.reason;
}

TEST_F(RebalanceTest, AReasonNamesTheNumbersThatDecided) {
  costs_.expert.weight_bytes = 3'000'000;  // 3 ms of migration
  record_.BeginTrial(apart_, together_);
  Watch(1);
  EXPECT_EQ(Ask().rule, RebalanceRule::kCost);
  EXPECT_THAT(
      Ask().reason,
      HasSubstr("but 1 later window confirms a saving of only 0 s over 10 steps, at a cost of "
                "3 ms (3 ms of migration); see: eplbctl help costs"));
}

TEST_F(RebalanceTest, ReplicasArePricedPerStep) {
  const Topology frame =
      Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 4, .num_gpus = 2}).value();
  IndexMatrix row(1, 4);
  row << 0, 0, 1, 2;
  const Placement beside = Placement::FromSlots(frame, row).value();
  row << 0, 1, 2, 0;
  const Placement across = Placement::FromSlots(frame, row).value();
  LoadMatrix counts(1, 3);
  counts << 1000, 10, 10;
  const Load load = Load::FromCounts(counts).value();
  record_.BeginTrial(across, beside);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(record_.Observe(load, 1, beside).ok());
  const auto ask = [&] {
    return EvaluateRebalance({.load = load,
                              .incumbent = beside,
                              .candidate = across,
                              .costs = costs_,
                              .record = record_})
        .value();
  };
  EXPECT_TRUE(ask().rebalance) << ask().reason;
  costs_.replica_gradient_bytes = 10'000'000;  // 10 ms a step, tokens save 0.5 ms
  EXPECT_FALSE(ask().rebalance);
  EXPECT_THAT(ask().reason, HasSubstr(" of replicas"));
}

TEST_F(RebalanceTest, ALosingPlacementGoesBackToTheStart) {
  const Load turned = Tokens({1000, 100, 1000, 100});  // `apart` puts the hot ones together
  Watch(10);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(record_.Observe(turned, 10, apart_).ok());
  const auto ask = [&] {
    return EvaluateReturn({.load = turned,
                           .incumbent = apart_,
                           .candidate = together_,
                           .steps_to_next = 10,
                           .costs = costs_,
                           .record = record_})
        .value();
  };
  EXPECT_TRUE(ask().rebalance);
  EXPECT_THAT(ask().reason,
              StartsWith("return to the starting placement for 1 ms of migration: the "
                         "placement in force lost 9 ms in 100 steps"));
  record_.Spend(-1);
  EXPECT_FALSE(ask().rebalance) << "the account bears it";
}

TEST_F(RebalanceTest, APriceThatIsAssumedIsNamedByItsBytesAndNotAsATime) {
  costs_.bandwidths = BandwidthSource::kAssumed;
  costs_.intra_bytes_per_s = 450e9;
  const auto ask = [&](double realized) {
    const LearnedGate gate{.realized = realized, .horizon_steps = 100};
    RebalanceInput input = Input();
    input.learned = &gate;
    return EvaluateRebalance(input).value();
  };
  const std::string small =
      "a migration of 2.0 MB (not measured yet; estimated from its bytes at 450 GB/s: under 1 ms)";
  EXPECT_TRUE(ask(1).rebalance);
  EXPECT_THAT(ask(1).reason, HasSubstr(", for " + small + ": peak GPU load"));
  EXPECT_FALSE(ask(0).rebalance);
  EXPECT_THAT(ask(0).reason,
              EndsWith(", and does not pay for " + small + "; see: eplbctl help costs"));
  costs_.intra_bytes_per_s = 1e6;
  EXPECT_THAT(ask(1).reason,
              HasSubstr("(not measured yet; estimated from its bytes at 0.001 GB/s: 1 s)"));
  costs_.bandwidths = BandwidthSource::kMeasured;
  EXPECT_THAT(ask(1).reason, HasSubstr("1 s of migration"));
}

TEST_F(RebalanceTest, HugeLoadsStayFinite) {
  RealMatrix cells = RealMatrix::Constant(1, 4, 1e300);
  cells(0, 3) = 0;
  const Load huge = Load::FromEstimates(cells).value();
  costs_.token_seconds = 1e9;
  record_.BeginTrial(apart_, together_);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(record_.Observe(huge, 1, together_).ok());
  for (const SavedTokens& trial : record_.Trials(together_)) {
    EXPECT_TRUE(std::isfinite(trial.Low()));
    EXPECT_TRUE(std::isfinite(trial.WorstPerStep()));
  }
  EXPECT_TRUE(std::isfinite(record_.start_tokens()));
}

TEST(TrackRecordTest, ANewIncumbentEndsTheTrialsAndManyAreThinnedOut) {
  const Load load = Tokens({4, 3, 2, 1});
  const Placement start = Of({0, 1, 2, 3});
  TrackRecord record;
  for (int i = 0; i < 50; ++i) {
    record.BeginTrial(Of({0, 3, 1, 2}), start);
    ASSERT_TRUE(record.Observe(load, 1, start).ok());
  }
  const std::vector<SavedTokens> trials = record.Trials(start);
  ASSERT_EQ(trials.size(), TrackRecord::kMaxTrials);
  EXPECT_EQ(trials.front().windows, 50);
  EXPECT_EQ(trials.back().windows, 1);
  EXPECT_EQ(trials.front().sum, 50 * (7 - 5));
  record.BeginTrial(start, start);
  EXPECT_EQ(record.Trials(start).size(), TrackRecord::kMaxTrials);
  ASSERT_TRUE(record.Observe(load, 1, Of({0, 3, 1, 2})).ok());
  EXPECT_TRUE(record.Trials(start).empty());
  EXPECT_EQ(record.saved_tokens(), 2);
}

TEST(SentenceTest, EveryRuleHasAName) {
  EXPECT_STREQ(NameOf(RebalanceRule::kNoChange), "no_change");
  EXPECT_STREQ(NameOf(RebalanceRule::kReturn), "return");
}

TEST_F(RebalanceTest, ARecordGoesOnFromItsSumsAndItsTrialsBeginAnew) {
  Watch(3);
  record_.BeginTrial(apart_, together_);
  record_.Spend(0.25);
  const TrackRecord next = TrackRecord::Continue({.start_tokens = record_.start_tokens(),
                                                  .saved_tokens = record_.saved_tokens(),
                                                  .spent_seconds = record_.spent_seconds()});
  EXPECT_EQ(next.start_tokens(), 6000);
  EXPECT_EQ(next.spent_seconds(), 0.25);
  EXPECT_TRUE(next.Trials(together_).empty());
  record_ = next;
  Watch(1);
  EXPECT_EQ(record_.start_tokens(), 8000);
  EXPECT_EQ(*record_.start(), together_);
}

// Three slots for each of two windows: what one window has too much of, the other lacks.
TEST(RebalanceSplitTest, WithExactSplitsTheWindowsAreJudgedOneByOne) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
  const auto placed = [&topology](std::initializer_list<int32_t> row) {
    IndexMatrix slots(1, 4);
    slots.row(0) = Eigen::Map<const Eigen::Array<int32_t, 1, 4>>(row.begin());
    return Placement::FromSlots(topology, slots).value();
  };
  const auto tokens = [](std::initializer_list<int64_t> row) {
    LoadMatrix counts(1, 3);
    counts.row(0) = Eigen::Map<const Eigen::Array<int64_t, 1, 3>>(row.begin());
    return Load::FromCounts(counts).value();
  };
  const std::vector<Load> recent = {tokens({100, 200, 0}), tokens({100, 0, 200})};
  const Load sum = tokens({200, 200, 200});
  const Placement apart = placed({1, 0, 2, 0});   // 1 and 2 on GPUs of their own
  const Placement shared = placed({1, 0, 1, 2});  // two replicas of 1, 2 beside one of them
  RebalanceInput input{.load = sum,
                       .num_steps = 2,
                       .incumbent = apart,
                       .candidate = shared,
                       .costs = {},
                       .record = {}};
  // In the sum both are even but for the replicas: 300 and 300, 300 and 300.
  EXPECT_DOUBLE_EQ(EvaluateExpected(input, apart)->peak_load, 300);
  EXPECT_DOUBLE_EQ(EvaluateExpected(input, shared)->peak_load, 300);
  input.split = SplitMode::kBatch;
  EXPECT_DOUBLE_EQ(EvaluateExpected(input, apart)->peak_load, 300) << "the sum as one batch";
  input.recent = recent;
  EXPECT_DOUBLE_EQ(EvaluateExpected(input, apart)->peak_load, 200 + 200);
  EXPECT_DOUBLE_EQ(EvaluateExpected(input, shared)->peak_load, 150 + 200);
  const RebalanceDecision decision = EvaluateRebalance(input).value();
  EXPECT_TRUE(decision.rebalance);
  EXPECT_EQ(decision.reason,
            "peak GPU load of these steps falls 12.5 % (balancedness with exact splits computed "
            "0.750 -> 0.857)");
}

TEST_F(RebalanceTest, WhatIsMeasuredStandsBesideWhatIsPredicted) {
  costs_.token_seconds = 0;
  PredictionRecord predictions;
  const auto ask = [&](double measured) {
    return EvaluateRebalance({.load = hot_,
                              .num_steps = 10,
                              .incumbent = together_,
                              .candidate = apart_,
                              .min_gain = 0.05,
                              .costs = costs_,
                              .record = record_,
                              .predictions = &predictions,
                              .measured = measured})
        .value();
  };
  EXPECT_EQ(ask(0.5).reason,
            "peak GPU load of these steps falls 45.0 % (balancedness measured 0.500, predicted "
            "0.750 +- unknown, gain +0.250; no earlier prediction to judge by)");
  EXPECT_EQ(
      ask(0).reason,
      "peak GPU load of these steps falls 45.0 % (balancedness measured: not known, predicted "
      "0.775 +- unknown; no earlier prediction to judge by)");
  for (int i = 0; i < 9; ++i) {
    const RebalanceDecision decision = ask(0.5);
    predictions.Begin(apart_, *decision.balancedness_computed, *decision.prediction);
    ASSERT_TRUE(predictions.Observe({.load = hot_}).ok());
  }
  const RebalanceDecision decision = ask(0.5);
  EXPECT_DOUBLE_EQ(decision.prediction->balancedness, (9 * 1 + 0.75) / 10);
  EXPECT_EQ(decision.reason,
            "peak GPU load of these steps falls 45.0 % (balancedness measured 0.500, predicted "
            "0.975 +- 0.029, gain +0.475; the last 9 predictions were within 0.250)");
}

}  // namespace
}  // namespace eplb
