#include "placement/replay/run_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "placement/evaluate.h"
#include "placement/policies/registry.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 12;

Topology SmallTopology() {
  return *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 4, .num_gpus = 2});
}

// Experts 0 and 1 are hot; the static layout puts both on GPU 0.
std::vector<Load> HotPair() {
  LoadMatrix counts(2, 4);
  counts << 10, 10, 2, 2, 10, 10, 2, 2;
  return std::vector<Load>(kSteps, *Load::FromCounts(counts));
}

Placement Even() {
  IndexMatrix slots(2, 4);
  slots << 0, 2, 1, 3, 0, 2, 1, 3;
  return *Placement::FromSlots(SmallTopology(), slots);
}

std::unique_ptr<Policy> Deepseek() { return *MakePolicy("deepseek", {}); }

std::vector<RunPlacement> StaticThenEven(int64_t step) {
  return {{.placement = Placement::Static(SmallTopology())},
          {.step = step, .decided_first_step = 0, .decided_last_step = 3, .placement = Even()}};
}

RunFigures FiguresOf(const std::vector<RunPlacement>& placements) {
  return EvaluateRun(HotPair(), placements, {.policy = *Deepseek(), .window_steps = 4}).value();
}

TEST(RunFiguresTest, EachSeriesFollowsItsOwnPlacements) {
  const RunFigures figures = FiguresOf(StaticThenEven(6));
  EXPECT_EQ(figures.first_switch_step, 6);
  EXPECT_EQ(figures.run.balancedness.size(), static_cast<size_t>(kSteps));
  EXPECT_DOUBLE_EQ(*figures.run.balancedness[5], 0.6);
  EXPECT_DOUBLE_EQ(*figures.run.balancedness[6], 1.0);
  EXPECT_DOUBLE_EQ(*figures.policy.balancedness[5], 0.6);
  EXPECT_DOUBLE_EQ(*figures.policy.balancedness[6], 1.0);
  EXPECT_DOUBLE_EQ(*figures.unmoved.balancedness[11], 0.6);
  EXPECT_DOUBLE_EQ(*figures.hindsight.balancedness[0], 1.0);
  EXPECT_DOUBLE_EQ(*figures.run.slowdown[5], 20.0 / 12);  // GPU loads 20 and 4
  EXPECT_DOUBLE_EQ(*figures.run.slowdown[6], 1);
  EXPECT_DOUBLE_EQ(*figures.unmoved.slowdown[6], 20.0 / 12);
  EXPECT_EQ(figures.unmoved.transfers, 0);
  EXPECT_EQ(figures.run.transfers, 4);        // two experts of each of two layers change GPUs
  EXPECT_EQ(figures.policy.transfers, 4);     // aligned, as a daemon would move it
  EXPECT_EQ(figures.hindsight.transfers, 4);  // once, then the windows are alike
  EXPECT_TRUE(figures.equal_shares.balancedness.empty());
  EXPECT_TRUE(figures.hindsight_split.balancedness.empty());
}

TEST(RunFiguresTest, WithoutEplbEachExpertHasOneSlot) {
  const Topology spare =
      *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 6, .num_gpus = 2});
  const std::vector<RunPlacement> still = {{.placement = Placement::Static(spare)}};
  const RunFigures figures = FiguresOf(still);
  EXPECT_DOUBLE_EQ(figures.without_eplb.balancedness[0].value(), 12.0 / 20);
  EXPECT_DOUBLE_EQ(figures.unmoved.balancedness[0].value(), 1)
      << "GPU 1 has half of the hot experts";
  EXPECT_DOUBLE_EQ(figures.without_eplb.peak_tokens, 40 * kSteps);
  EXPECT_DOUBLE_EQ(figures.run.peak_tokens, 24 * kSteps);
}

TEST(RunFiguresTest, APlacementThatNobodysPolicyDecidedIsTakenOver) {
  std::vector<RunPlacement> placements = StaticThenEven(4);
  placements.push_back({.step = 8, .placement = Placement::Static(SmallTopology())});
  const RunFigures figures = FiguresOf(placements);
  EXPECT_DOUBLE_EQ(*figures.policy.balancedness[7], 1.0);
  EXPECT_DOUBLE_EQ(*figures.policy.balancedness[8], 0.6);
}

TEST(RunFiguresTest, WhatWasMeasuredIsOfThePlacementsThatTheStepsRanUnder) {
  const std::vector<Load> loads = HotPair();
  const std::vector<RunPlacement> placements = StaticThenEven(6);
  EXPECT_DOUBLE_EQ(**MeasuredBalancedness(loads, placements, {0, 5}), 0.6);
  EXPECT_DOUBLE_EQ(**MeasuredBalancedness(loads, placements, {6, 11}), 1.0);
  // Steps 4..7: two with GPU loads 20 and 4, two with 12 and 12; 64 and 32 in all.
  EXPECT_DOUBLE_EQ(**MeasuredBalancedness(loads, placements, {4, 7}), 48.0 / 64);
  EXPECT_FALSE(MeasuredBalancedness(loads, placements, {6, kSteps}).ok());
}

TEST(RunFiguresTest, AMeanIsOverTheStepsThatAreIncluded) {
  const std::vector<std::optional<double>> figures = {1, std::nullopt, 3, 4};
  EXPECT_EQ(MeanOf(figures, {true, true, true, false}), 2);
  EXPECT_EQ(MeanOf(figures, {false, true, false, false}), std::nullopt);
}

TEST(RunFiguresTest, ThePolicySwitchesOnlyTheLayersThatTheRunSwitched) {
  std::vector<RunPlacement> placements = StaticThenEven(6);
  placements[1].placement =
      *placements[0].placement.WithLayers(std::vector<LayerPlacement>{Even().Layer(LayerId{1})});
  const RunFigures figures = FiguresOf(placements);
  EXPECT_DOUBLE_EQ(*figures.policy.balancedness[6], 0.8);  // layer 0 still at 0.6
}

TEST(RunFiguresTest, ARunWithoutASwitchSaysSo) {
  const RunFigures figures = FiguresOf({StaticThenEven(6)[0]});
  EXPECT_EQ(figures.first_switch_step, -1);
  EXPECT_EQ(figures.run.balancedness, figures.unmoved.balancedness);
  EXPECT_EQ(figures.run.transfers, 0);
}

TEST(RunFiguresTest, DisorderIsRefused) {
  const auto refusal = [](const std::vector<RunPlacement>& placements, int64_t window_steps) {
    const auto figures =
        EvaluateRun(HotPair(), placements, {.policy = *Deepseek(), .window_steps = window_steps});
    return std::string(figures.status().message());
  };
  std::vector<RunPlacement> placements = StaticThenEven(6);
  placements[0].step = 1;
  EXPECT_THAT(refusal(placements, 4), HasSubstr("begins at step 0"));
  EXPECT_THAT(refusal(StaticThenEven(0), 4), HasSubstr("placement 1 begins at step 0"));
  placements = StaticThenEven(6);
  placements[1].decided_last_step = kSteps;
  EXPECT_THAT(refusal(placements, 4), HasSubstr("covers steps up to 12"));
  EXPECT_NE(refusal(StaticThenEven(6), 0), "");
}

TEST(RunFiguresTest, SumsAreOfTheStepsAsked) {
  const std::vector<Load> loads = HotPair();
  EXPECT_DOUBLE_EQ(SumLoads(loads, 2, 4)->ToDouble()(0, 0), 30);
  EXPECT_FALSE(SumLoads(loads, 4, 3).ok());
  EXPECT_FALSE(SumLoads(loads, 0, kSteps).ok());
}

TEST(RunFiguresTest, AStepWithoutTokensHasNoBalancednessAndIsInNoMean) {
  std::vector<Load> loads = HotPair();
  for (size_t step = 6; step < loads.size(); ++step) {
    loads[step] = *Load::FromCounts(LoadMatrix::Zero(2, 4));
  }
  const std::vector<RunPlacement> placements = StaticThenEven(kSteps - 1);
  const auto figures = EvaluateRun(loads, placements, {.policy = *Deepseek(), .window_steps = 4});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->unmoved.balancedness[6], std::nullopt);
  const std::vector<bool> all(loads.size(), true);
  EXPECT_DOUBLE_EQ(*MeanOf(figures->unmoved.balancedness, all), 0.6);
  EXPECT_EQ(*MeasuredBalancedness(loads, placements, {6, 9}), std::nullopt);
}

// Two experts in three slots of two GPUs: the one with a replica evens out whatever the other has.
Placement Shared() {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
  IndexMatrix slots(1, 4);
  slots << 0, 1, 0, 2;
  return *Placement::FromSlots(topology, slots);
}

Load Batch(std::initializer_list<int64_t> row) {
  LoadMatrix counts(1, 3);
  counts.row(0) = Eigen::Map<const Eigen::Array<int64_t, 1, 3>>(row.begin());
  return *Load::FromCounts(counts);
}

// Each step on its own is even once it is split; the sum of both is so in equal shares.
TEST(RunFiguresTest, ARunThatSplitsItsStepsIsMeasuredStepByStep) {
  const std::vector<Load> loads = {Batch({8, 8, 0}), Batch({8, 0, 8}), Batch({2, 12, 2}),
                                   Batch({2, 2, 12})};
  const std::vector<RunPlacement> placements = {{.placement = Shared()}};
  const auto incremental = *MakePolicy("incremental", {});
  const auto figures = EvaluateRun(loads, placements,
                                   {.policy = *Deepseek(),
                                    .window_steps = 2,
                                    .split = SplitMode::kBatch,
                                    .hindsight_split = incremental.get()});
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->run.balancedness,
            (std::vector<std::optional<double>>{1, 1, 8.0 / 12, 8.0 / 12}));
  EXPECT_EQ(figures->equal_shares.balancedness,
            (std::vector<std::optional<double>>{8.0 / 12, 8.0 / 12, 8.0 / 13, 8.0 / 13}));
  EXPECT_DOUBLE_EQ(*figures->run.slowdown[2], 12.0 / 8);
  EXPECT_EQ(figures->hindsight_split.balancedness.size(), loads.size());
  EXPECT_DOUBLE_EQ(**MeasuredBalancedness(loads, placements, {0, 3}, SplitMode::kBatch),
                   32.0 / (8 + 8 + 12 + 12));
  EXPECT_DOUBLE_EQ(**MeasuredBalancedness(loads, placements, {0, 3}), 1);
}

}  // namespace
}  // namespace eplb
