#include "placement/split/batch_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/placement/random_placement.h"
#include "tests/placement/split/split_checks.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LayerId kFirst{0};

std::vector<int64_t> Quotas(const Placement& placement, const std::vector<int64_t>& counts,
                            const BatchSplitOptions& options = {}) {
  const SplitGraph graph = *SplitGraph::Make(placement, options);
  std::vector<int64_t> quotas(static_cast<size_t>(graph.num_slots()), -1);
  EXPECT_TRUE(BatchSplitter(graph).Split(kFirst, counts, quotas).ok());
  return quotas;
}

TEST(BatchSplitTest, AHotExpertFillsTheGpuWithRoom) {
  // Expert 0 on both GPUs; expert 1 on GPU 0, expert 2 on GPU 1.
  const Placement placement = OneLayerPlacement(3, 2, {0, 1, 0, 2});
  EXPECT_THAT(Quotas(placement, {10, 6, 0}), ElementsAre(2, 6, 8, 0));
  EXPECT_THAT(Quotas(placement, {10, 0, 30}), ElementsAre(10, 0, 0, 30));
}

TEST(BatchSplitTest, EqualSharesStayWhereTheyAreBest) {
  const Placement placement = OneLayerPlacement(3, 2, {0, 1, 0, 2});
  EXPECT_THAT(Quotas(placement, {11, 5, 5}), ElementsAre(6, 5, 5, 5));
}

TEST(BatchSplitTest, SlotsOfAnExpertOnOneGpuShareEqually) {
  // Expert 0 twice on GPU 0 and once on GPU 1; expert 1 twice on GPU 1, and nowhere else.
  const Placement placement = OneLayerPlacement(2, 2, {0, 0, 0, 0, 1, 1});
  EXPECT_THAT(Quotas(placement, {10, 5}), ElementsAre(3, 3, 2, 2, 3, 2));
}

TEST(BatchSplitTest, AFasterGpuGetsMore) {
  const Placement placement = OneLayerPlacement(1, 2, {0, 0});
  const GpuSpeeds speeds = *GpuSpeeds::Make(2, std::vector<double>{1, 0.5}, {});
  EXPECT_THAT(Quotas(placement, {9}, {.speeds = &speeds}), ElementsAre(6, 3));
  EXPECT_THAT(Quotas(placement, {10}, {.speeds = &speeds}), ElementsAre(7, 3));
}

TEST(BatchSplitTest, SlackKeepsEqualSharesThatAreNearlyBest) {
  const Placement placement = OneLayerPlacement(3, 2, {0, 1, 0, 2});
  EXPECT_THAT(Quotas(placement, {100, 52, 50}), ElementsAre(49, 52, 51, 50));
  EXPECT_THAT(Quotas(placement, {100, 52, 50}, {.slack = 0.02}), ElementsAre(50, 52, 50, 50));
}

TEST(BatchSplitTest, WhatDoesNotFitIsRefusedByName) {
  const SplitGraph graph = *SplitGraph::Make(OneLayerPlacement(3, 2, {0, 1, 0, 2}));
  BatchSplitter splitter(graph);
  std::vector<int64_t> quotas(4, -1);
  const auto refusal = [&](std::vector<int64_t> counts, LayerId layer = kFirst) {
    const absl::Status status = splitter.Split(layer, counts, quotas).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({1, -2, 3}), HasSubstr("layer 0: expert 1 has -2 tokens"));
  EXPECT_THAT(refusal({1, kMaxSplitTokens, 0}), HasSubstr("expert 1 has"));
  EXPECT_THAT(refusal({1, 2}), HasSubstr("2 counts and 4 quotas, expected 3 and 4"));
  EXPECT_THAT(refusal({1, 2, 3}, LayerId{1}), HasSubstr("layer 1 is not in 0..0"));
  const absl::Status few =
      splitter.Split(kFirst, std::vector<int64_t>{1, 2, 3}, std::span(quotas).first(3)).status();
  EXPECT_THAT(std::string(few.message()), HasSubstr("3 counts and 3 quotas, expected 3 and 4"));
  EXPECT_THAT(quotas, ElementsAre(-1, -1, -1, -1)) << "nothing is written";
}

// Without the bound of TokensWithin the peak of the slow GPU allows the fast one 2^55 tokens, times
// a slack of 2^20 units.
TEST(BatchSplitTest, TheSlowestGpuBesideTheFastestDoesNotOverflow) {
  EXPECT_EQ(TokensWithin({kMaxSplitTokens, 17}, kMaxSplitSpeed), kMaxSplitTokens);
  const Placement placement = OneLayerPlacement(2, 2, {0, 1, 1, 1});
  const GpuSpeeds speeds =
      *GpuSpeeds::Make(2, std::vector<double>{GpuSpeeds::kMinSpeed, GpuSpeeds::kMaxSpeed}, {});
  constexpr int64_t kTokens = int64_t{1} << 35;
  for (const double slack : {0.0, 1.0}) {
    EXPECT_THAT(Quotas(placement, {kTokens, 0}, {.speeds = &speeds, .slack = slack}),
                ElementsAre(kTokens, 0, 0, 0));
  }
  const std::vector<int64_t> quotas =
      Quotas(placement, {kTokens, 300}, {.speeds = &speeds, .slack = 1});
  EXPECT_THAT(quotas, ElementsAre(kTokens, 100, 100, 100)) << "the slack keeps equal shares";
}

TEST(BatchSplitTest, EqualsAnIndependentMaximumFlowOnSmallShapes) {
  Random random(20261124);
  for (int i = 0; i < 9000 && !HasFailure(); ++i) {
    CheckAgainstOracle(random, RandomPlacement(random, RandomTopology(random)));
  }
}

TEST(BatchSplitTest, EqualsAnIndependentMaximumFlowOnLargeShapes) {
  Random random(7);
  constexpr struct {
    int32_t num_experts, num_slots, num_gpus, repetitions;
  } kShapes[] = {{64, 72, 8, 600},    {256, 288, 32, 250}, {256, 384, 64, 100},
                 {256, 512, 128, 40}, {384, 1024, 256, 8}, {512, 2048, 1016, 2}};
  for (const auto& shape : kShapes) {
    CheckShape(random,
               {.num_layers = 1,
                .num_experts = shape.num_experts,
                .num_slots = shape.num_slots,
                .num_gpus = shape.num_gpus},
               shape.repetitions);
  }
}

Load BatchOf(const std::vector<int64_t>& counts) {
  return *Load::FromCounts(Eigen::Map<const LoadMatrix>(counts.data(), 1, std::ssize(counts)));
}

TEST(EvaluateBatchTest, TheFullestGpuIsThatOfTheSplit) {
  const Placement placement = OneLayerPlacement(3, 2, {0, 1, 0, 2});
  const Evaluation equal = *Evaluate(BatchOf({10, 6, 0}), placement);
  const Evaluation batch = *EvaluateBatch(BatchOf({10, 6, 0}), placement);
  EXPECT_EQ(equal.max_gpu_load.front(), 11);
  EXPECT_EQ(batch.max_gpu_load.front(), 8);
  EXPECT_EQ(batch.mean_balancedness, 1);
}

TEST(EvaluateBatchTest, SpeedsAndEstimatesAreSplitToo) {
  const Placement placement = OneLayerPlacement(1, 2, {0, 0});
  const GpuSpeeds speeds = *GpuSpeeds::Make(2, std::vector<double>{1, 0.5}, {});
  EXPECT_EQ(EvaluateBatch(BatchOf({9}), placement, &speeds)->max_gpu_load.front(), 6);
  const RealMatrix estimate = RealMatrix::Constant(1, 1, 4.5);
  const Evaluation evaluation = *EvaluateBatch(*Load::FromEstimates(estimate), placement, &speeds);
  EXPECT_NEAR(evaluation.max_gpu_load.front(), 3, 1e-9);
}

TEST(EvaluateBatchTest, ALoadOfAnotherShapeIsRefused) {
  EXPECT_FALSE(EvaluateBatch(BatchOf({1, 2}), OneLayerPlacement(3, 2, {0, 1, 0, 2})).ok());
}

TEST(EvaluateBatchTest, SeveralBatchesWaitEachForItsOwnFullestGpu) {
  const Placement placement = OneLayerPlacement(3, 2, {0, 1, 0, 2});  // expert 0 on both GPUs
  const std::vector<Load> batches = {BatchOf({2, 12, 2}), BatchOf({2, 2, 12})};
  const Evaluation each = *EvaluateBatches(batches, placement);
  EXPECT_EQ(each.max_gpu_load.front(), 12 + 12);
  EXPECT_EQ(each.peak_load, 24);
  EXPECT_EQ(each.gpu_loads.sum(), 32);
  EXPECT_DOUBLE_EQ(*each.mean_balancedness, 16.0 / 24);
  EXPECT_EQ(EvaluateBatch(BatchOf({4, 14, 14}), placement)->mean_balancedness, 1)
      << "their sum is even";
  EXPECT_FALSE(EvaluateBatches({}, placement).ok());
}

TEST(EvaluateWindowsTest, SeveralWindowsInEqualSharesWaitEachForItsOwnFullestGpu) {
  const Placement placement = OneLayerPlacement(3, 2, {0, 1, 0, 2});  // expert 0 on both GPUs
  const std::vector<Load> windows = {BatchOf({8, 6, 2}), BatchOf({0, 0, 0}), BatchOf({8, 2, 6})};
  const Evaluation each = *EvaluateWindows(windows, placement, SplitMode::kEqual);
  EXPECT_EQ(each.peak_load, 10 + 10);
  EXPECT_DOUBLE_EQ(*each.mean_balancedness, 16.0 / 20) << "the idle window adds nothing";
  EXPECT_EQ(EvaluateWindows(windows, placement, SplitMode::kBatch)->peak_load, 8 + 8);
}

}  // namespace
}  // namespace eplb
