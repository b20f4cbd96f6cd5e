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
    costs_.token_seconds = 1e-6;  // a window of 10 steps saves 0.9 ms, both transfers take 1 ms
  }

  RebalanceInput Input() const {
    return {.load = hot_,
            .num_steps = 10,
            .incumbent = together_,
            .candidate = apart_,
            .min_gain = 0.05,
            .costs = costs_};
  }
  RebalanceDecision Ask() const { return EvaluateRebalance(Input()).value(); }
  RebalanceDecision AskWith(const LearnedGate& gate) const {
    RebalanceInput input = Input();
    input.learned = &gate;
    return EvaluateRebalance(input).value();
  }

  const Load hot_ = Tokens({1000, 1000, 100, 100});
  const Placement together_ = Of({0, 1, 2, 3});
  const Placement apart_ = Of({0, 2, 1, 3});
  Costs costs_;
};

TEST_F(RebalanceTest, StepsWithoutTokensMoveNothingAndPredictNothing) {
  const Load idle = Tokens({0, 0, 0, 0});
  const PredictionRecord predictions;
  const RebalanceDecision decision = EvaluateRebalance({.load = idle,
                                                        .incumbent = together_,
                                                        .candidate = apart_,
                                                        .costs = {},
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
  // 2000 tokens beside 200 / 0.1, or 1100 beside 1100 / 0.1.
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

TEST_F(RebalanceTest, ABackTestThatProvedNothingKeepsWithAndWithoutPrices) {
  for (const double token_seconds : {0.0, 1e-6}) {
    costs_.token_seconds = token_seconds;
    const RebalanceDecision decision = AskWith({.in_use = false, .windows = 4});
    EXPECT_FALSE(decision.rebalance);
    EXPECT_EQ(decision.rule, RebalanceRule::kBacktest);
    EXPECT_THAT(decision.reason,
                StartsWith("kept, peak GPU load of these steps would fall 45.0 %"));
    EXPECT_THAT(decision.reason, HasSubstr("the back-test of 4 windows"));
  }
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
                                                        .costs = costs_})
                                         .value();
  EXPECT_FALSE(decision.rebalance);
  EXPECT_EQ(decision.reason,
            "kept, peak GPU load of these steps would rise 81.8 % (balancedness computed 1.000 -> "
            "0.550)");
}

TEST_F(RebalanceTest, AReasonHasTheGainItsShareAndItsPrice) {
  const RebalanceDecision pays =
      AskWith({.horizon_steps = 100, .windows = 24, .shown = {.realized = 0.62}});
  EXPECT_TRUE(pays.rebalance);
  EXPECT_EQ(pays.rule, RebalanceRule::kPays);
  EXPECT_EQ(pays.reason,
            "rebalance saves 5.6 ms over 100 steps, counted with 62 % of the predicted gain as the "
            "back-test of 24 windows shows, for 1 ms of migration: peak GPU load of these steps "
            "falls 45.0 % (balancedness computed 0.550 -> 1.000)");
  const RebalanceDecision cost = AskWith({.horizon_steps = 10});
  EXPECT_FALSE(cost.rebalance);
  EXPECT_EQ(cost.rule, RebalanceRule::kCost);
  EXPECT_THAT(cost.reason,
              EndsWith(", which saves 0.45 ms over 10 steps, counted with 50 % of the predicted "
                       "gain, and the cost is 1 ms (1 ms of migration); see: eplbctl help costs"));
}

TEST_F(RebalanceTest, WhileNothingWasComparedAGainMustBeSeveralTimesItsPrice) {
  const LearnedGate gate{.horizon_steps = 50, .times = 4};  // 2.3 ms, more than 1 ms
  EXPECT_FALSE(AskWith(gate).rebalance);
  EXPECT_THAT(AskWith(gate).reason, HasSubstr("4.0 times the cost is 4 ms"));
}

TEST_F(RebalanceTest, MuchOfAGainIsBelievedAsIsProved) {
  EXPECT_FALSE(AskWith({.horizon_steps = 20, .shown = {.realized = 0}}).rebalance);
  // 60 of the 90 tokens per step, 1.2 ms over 20 steps.
  const RebalanceDecision decision =
      AskWith({.horizon_steps = 20, .shown = {.realized = 0, .proved_tokens = 60}});
  EXPECT_TRUE(decision.rebalance);
  EXPECT_THAT(decision.reason, HasSubstr("saves 1.2 ms over 20 steps, counted with 67 %"));
}

TEST_F(RebalanceTest, WaitingEndsOnceItHasCostAsMuchAsTheMove) {
  LearnedGate gate{.horizon_steps = 1, .shown = {.missed_seconds = 0.9e-3}};
  EXPECT_FALSE(AskWith(gate).rebalance);
  gate.shown.missed_seconds = 1.1e-3;
  EXPECT_TRUE(AskWith(gate).rebalance);
  EXPECT_THAT(AskWith(gate).reason, HasSubstr("(the candidate has saved 1.1 ms against the "
                                              "current placement)"));
  gate.returns = true;
  EXPECT_EQ(AskWith(gate).rule, RebalanceRule::kReturn);
  EXPECT_THAT(AskWith(gate).reason, StartsWith("return to the starting placement saves "));
}

TEST_F(RebalanceTest, AMigrationAboveTheBudgetGoesByWhatIsSurer) {
  LearnedGate gate{.horizon_steps = 100, .shown = {.realized = 1}, .sure = {.realized = 0.1}};
  EXPECT_TRUE(AskWith(gate).rebalance);
  gate.budget_seconds = 0.9e-3;
  EXPECT_FALSE(AskWith(gate).rebalance);
  gate.budget_seconds = 1.1e-3;
  EXPECT_TRUE(AskWith(gate).rebalance);
}

// 100 steps save 9 ms, 10 steps 0.9 ms: less than the migration.
TEST_F(RebalanceTest, AHorizonCapsWhatTheBackTestCounts) {
  const LearnedGate gate{.horizon_steps = 100, .shown = {.realized = 1}};
  EXPECT_TRUE(AskWith(gate).rebalance);
  costs_.horizon_steps = 10;
  EXPECT_EQ(AskWith(gate).rule, RebalanceRule::kCost);
  EXPECT_THAT(AskWith(gate).reason, HasSubstr("over 10 steps"));
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
  const LearnedGate gate{.horizon_steps = 1000, .shown = {.realized = 1}};
  const auto ask = [&] {
    return EvaluateRebalance({.load = load,
                              .incumbent = beside,
                              .candidate = across,
                              .costs = costs_,
                              .learned = &gate})
        .value();
  };
  EXPECT_TRUE(ask().rebalance) << ask().reason;
  costs_.replica_gradient_bytes = 10'000'000;  // 10 ms a step, tokens save 0.5 ms
  EXPECT_FALSE(ask().rebalance);
  EXPECT_THAT(ask().reason, HasSubstr(" of replicas"));
}

TEST_F(RebalanceTest, APriceThatIsAssumedIsNamedByItsBytesAndNotAsATime) {
  costs_.bandwidths = BandwidthSource::kAssumed;
  costs_.intra_bytes_per_s = 450e9;
  const auto ask = [&](double realized) {
    return AskWith({.horizon_steps = 100, .shown = {.realized = realized}});
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
  RebalanceInput input{.load = huge, .incumbent = together_, .candidate = apart_, .costs = costs_};
  const LearnedGate gate{.horizon_steps = 1e300, .shown = {.realized = 1}};
  input.learned = &gate;
  const RebalanceDecision decision = EvaluateRebalance(input).value();
  EXPECT_TRUE(std::isfinite(decision.peak_fall()));
  EXPECT_THAT(decision.reason, ::testing::Not(HasSubstr("inf")));
}

TEST(SentenceTest, EveryRuleHasAName) {
  EXPECT_STREQ(NameOf(RebalanceRule::kNoChange), "no_change");
  EXPECT_STREQ(NameOf(RebalanceRule::kReturn), "return");
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
  RebalanceInput input{
      .load = sum, .num_steps = 2, .incumbent = apart, .candidate = shared, .costs = {}};
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
