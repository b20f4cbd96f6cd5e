#include "placement/split/batch_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/placement/random_placement.h"
#include "tests/support/integer_split_oracle.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IntegerSplitProblem;
using testing::Pick;
using testing::Random;

constexpr LayerId kFirst{0};

Placement PlacementOf(int32_t num_experts, int32_t num_gpus,
                      const std::vector<int32_t>& physical_to_logical) {
  const Topology topology =
      *Topology::Make({.num_layers = 1,
                       .num_experts = num_experts,
                       .num_slots = static_cast<int32_t>(physical_to_logical.size()),
                       .num_gpus = num_gpus});
  return *Placement::FromSlots(
      topology, Eigen::Map<const IndexMatrix>(physical_to_logical.data(), 1, topology.num_slots()));
}

std::vector<int64_t> Quotas(const Placement& placement, const std::vector<int64_t>& counts,
                            const BatchSplitOptions& options = {}) {
  const SplitGraph graph = *SplitGraph::Make(placement, options);
  std::vector<int64_t> quotas(static_cast<size_t>(graph.num_slots()), -1);
  EXPECT_TRUE(BatchSplitter(graph).Split(kFirst, counts, quotas).ok());
  return quotas;
}

TEST(BatchSplitTest, AHotExpertFillsTheGpuWithRoom) {
  // Expert 0 on both GPUs; expert 1 on GPU 0, expert 2 on GPU 1.
  const Placement placement = PlacementOf(3, 2, {0, 1, 0, 2});
  EXPECT_THAT(Quotas(placement, {10, 6, 0}), ElementsAre(2, 6, 8, 0));
  EXPECT_THAT(Quotas(placement, {10, 0, 30}), ElementsAre(10, 0, 0, 30));
}

TEST(BatchSplitTest, EqualSharesStayWhereTheyAreBest) {
  const Placement placement = PlacementOf(3, 2, {0, 1, 0, 2});
  EXPECT_THAT(Quotas(placement, {11, 5, 5}), ElementsAre(6, 5, 5, 5));
}

TEST(BatchSplitTest, SlotsOfAnExpertOnOneGpuShareEqually) {
  // Expert 0 twice on GPU 0 and once on GPU 1; expert 1 twice on GPU 1, and nowhere else.
  const Placement placement = PlacementOf(2, 2, {0, 0, 0, 0, 1, 1});
  EXPECT_THAT(Quotas(placement, {10, 5}), ElementsAre(3, 3, 2, 2, 3, 2));
}

TEST(BatchSplitTest, ALayerWithoutTokensHasQuotasOfZero) {
  const Placement placement = PlacementOf(3, 2, {0, 1, 0, 2});
  EXPECT_THAT(Quotas(placement, {0, 0, 0}), ElementsAre(0, 0, 0, 0));
}

TEST(BatchSplitTest, AFasterGpuGetsMore) {
  const Placement placement = PlacementOf(1, 2, {0, 0});
  const GpuSpeeds speeds = *GpuSpeeds::Make(2, std::vector<double>{1, 0.5}, {});
  EXPECT_THAT(Quotas(placement, {9}, {.speeds = &speeds}), ElementsAre(6, 3));
  EXPECT_THAT(Quotas(placement, {10}, {.speeds = &speeds}), ElementsAre(7, 3));
}

TEST(BatchSplitTest, SlackKeepsEqualSharesThatAreNearlyBest) {
  const Placement placement = PlacementOf(3, 2, {0, 1, 0, 2});
  EXPECT_THAT(Quotas(placement, {100, 52, 50}), ElementsAre(49, 52, 51, 50));
  EXPECT_THAT(Quotas(placement, {100, 52, 50}, {.slack = 0.02}), ElementsAre(50, 52, 50, 50));
}

TEST(BatchSplitTest, WhatDoesNotFitIsRefusedByName) {
  const SplitGraph graph = *SplitGraph::Make(PlacementOf(3, 2, {0, 1, 0, 2}));
  BatchSplitter splitter(graph);
  std::vector<int64_t> quotas(4, -1);
  const auto refusal = [&](std::vector<int64_t> counts, LayerId layer = kFirst) {
    const absl::Status status = splitter.Split(layer, counts, quotas);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refusal({1, -2, 3}), HasSubstr("layer 0: expert 1 has -2 tokens"));
  EXPECT_THAT(refusal({1, kMaxSplitTokens, 0}), HasSubstr("expert 1 has"));
  EXPECT_THAT(refusal({1, 2}), HasSubstr("2 counts and 4 quotas, expected 3 and 4"));
  EXPECT_THAT(refusal({1, 2, 3}, LayerId{1}), HasSubstr("layer 1 is not in 0..0"));
  EXPECT_THAT(quotas, ElementsAre(-1, -1, -1, -1)) << "nothing is written";
}

TEST(BatchSplitTest, AGraphThatCannotBeIsRefusedByName) {
  const Placement placement = PlacementOf(3, 2, {0, 1, 0, 2});
  const GpuSpeeds three = GpuSpeeds::Equal(3);
  const GpuSpeeds one_off = *GpuSpeeds::Make(2, {}, std::vector<int32_t>{1});
  EXPECT_THAT(std::string(SplitGraph::Make(placement, {.speeds = &three}).status().message()),
              HasSubstr("3 GPU speeds, the placement has 2 GPUs"));
  EXPECT_THAT(std::string(SplitGraph::Make(placement, {.speeds = &one_off}).status().message()),
              HasSubstr("GPU 1 is unusable"));
  for (const double slack : {-0.1, 1.5, std::nan("")}) {
    EXPECT_FALSE(SplitGraph::Make(placement, {.slack = slack}).ok());
  }
  const Topology large =
      *Topology::Make({.num_layers = 1, .num_experts = 1, .num_slots = 1025, .num_gpus = 1025});
  EXPECT_THAT(std::string(SplitGraph::Make(Placement::Static(large)).status().message()),
              HasSubstr("an EP group of 1025 GPUs"));
}

// A random batch of one of several kinds of skew.
std::vector<int64_t> RandomCounts(Random& random, int32_t num_experts) {
  std::vector<int64_t> counts(static_cast<size_t>(num_experts));
  const int32_t kind = Pick(random, 0, 5);
  for (int64_t& count : counts) {
    const int32_t roll = Pick(random, 0, 1'000'000);
    switch (kind) {
      case 0:
        count = roll % 5;  // few tokens: rounding shows
        break;
      case 1:
        count = roll;
        break;
      case 2:
        count = roll % 3 == 0 ? roll : 0;
        break;
      case 3:
        count = static_cast<int64_t>(std::exp(roll / 1e5));  // 1 .. 22,000, mostly small
        break;
      case 4:
        count = 1000 + roll % 50;
        break;
      default:
        count = 1;
    }
  }
  if (kind == 5) counts[static_cast<size_t>(Pick(random, 0, num_experts - 1))] = int64_t{1} << 35;
  return counts;
}

GpuSpeeds RandomSpeeds(Random& random, int32_t num_gpus) {
  std::vector<double> speeds(static_cast<size_t>(num_gpus), 1.0);
  if (Pick(random, 0, 1) == 0) return GpuSpeeds::Equal(num_gpus);
  for (double& speed : speeds) speed = Pick(random, 1, 8) / 4.0;
  if (Pick(random, 0, 3) == 0) speeds.front() = GpuSpeeds::kMinSpeed;
  return *GpuSpeeds::Make(num_gpus, speeds, {});
}

IntegerSplitProblem ProblemOf(const Placement& placement, const SplitGraph& graph, LayerId layer,
                              const std::vector<int64_t>& counts) {
  IntegerSplitProblem problem{.tokens = counts, .gpus_of = {}, .speeds = {}};
  problem.speeds.assign(graph.speeds().begin(), graph.speeds().end());
  for (int32_t expert = 0; expert < graph.num_experts(); ++expert) {
    problem.gpus_of.emplace_back();
    for (const int32_t slot : placement.ReplicasOf(layer, ExpertId{expert})) {
      problem.gpus_of.back().push_back(placement.topology().GpuOf(SlotId{slot}).value);
    }
  }
  return problem;
}

// Quotas are whole tokens of their experts, and no GPU is above the peak and the slack.
void CheckQuotas(const Placement& placement, const SplitGraph& graph, LayerId layer,
                 const std::vector<int64_t>& counts, const std::vector<int64_t>& quotas,
                 const SplitPeak& peak) {
  std::vector<int64_t> sums(counts.size());
  std::vector<int64_t> loads(static_cast<size_t>(graph.num_gpus()));
  for (int32_t slot = 0; slot < graph.num_slots(); ++slot) {
    const int64_t quota = quotas[static_cast<size_t>(slot)];
    ASSERT_GE(quota, 0);
    const int32_t expert = placement.ExpertIn(layer, SlotId{slot}).value;
    if (expert >= 0) sums[static_cast<size_t>(expert)] += quota;
    loads[static_cast<size_t>(placement.topology().GpuOf(SlotId{slot}).value)] += quota;
  }
  ASSERT_EQ(sums, counts);
  int64_t fullest = 0;
  for (size_t gpu = 0; gpu < loads.size(); ++gpu) {
    const int64_t within = TokensWithin(peak, graph.speeds()[gpu]);
    ASSERT_LE(loads[gpu], within + within * graph.slack() / kSplitSlackUnit) << "GPU " << gpu;
    fullest += loads[gpu] * peak.speed == peak.tokens * graph.speeds()[gpu] ? 1 : 0;
  }
  if (graph.slack() == 0) {
    ASSERT_GT(fullest, 0) << "a GPU reaches the peak";
  }
}

void CheckAgainstOracle(Random& random, const Placement& placement) {
  const GpuSpeeds speeds = RandomSpeeds(random, placement.topology().num_gpus());
  const double slack = Pick(random, 0, 2) == 0 ? 0.005 * Pick(random, 1, 20) : 0;
  const SplitGraph graph = *SplitGraph::Make(placement, {.speeds = &speeds, .slack = slack});
  BatchSplitter splitter(graph);
  for (int32_t i = 0; i < graph.num_layers(); ++i) {
    const LayerId layer{i};
    const std::vector<int64_t> counts = RandomCounts(random, graph.num_experts());
    std::vector<int64_t> quotas(static_cast<size_t>(graph.num_slots()));
    const SplitBound bound = *splitter.SplitWithBound(layer, counts, quotas);
    CheckQuotas(placement, graph, layer, counts, quotas, bound.peak);
    const IntegerSplitProblem problem = ProblemOf(placement, graph, layer, counts);
    EXPECT_EQ(testing::CheckProof(problem, bound.peak.tokens, bound.peak.speed, bound.tight_gpus),
              "");
    EXPECT_TRUE(testing::FitsWithin(problem, bound.peak.tokens, bound.peak.speed));
    if (speeds.all_equal()) {
      EXPECT_EQ(bound.peak, (SplitPeak{testing::LeastPeakByNewton(problem), 1}));
    }
  }
}

TEST(BatchSplitTest, EqualsAnIndependentMaximumFlowOnSmallShapes) {
  Random random(20261124);
  for (int i = 0; i < 7000 && !HasFailure(); ++i) {
    CheckAgainstOracle(random, testing::RandomPlacement(random, testing::RandomTopology(random)));
  }
}

TEST(BatchSplitTest, EqualsAnIndependentMaximumFlowOnLargeShapes) {
  constexpr struct {
    int32_t num_experts, num_slots, num_gpus, repetitions;
  } kShapes[] = {{64, 72, 8, 200},    {256, 288, 32, 100},  {256, 384, 64, 50},
                 {256, 512, 128, 20}, {384, 1024, 256, 10}, {512, 2048, 1024, 5}};
  Random random(7);
  for (const auto& shape : kShapes) {
    const Topology topology = *Topology::Make({.num_layers = 1,
                                               .num_experts = shape.num_experts,
                                               .num_slots = shape.num_slots,
                                               .num_gpus = shape.num_gpus});
    for (int32_t i = 0; i < shape.repetitions && !HasFailure(); ++i) {
      CheckAgainstOracle(random, testing::RandomPlacement(random, topology));
    }
  }
}

Load BatchOf(const std::vector<int64_t>& counts) {
  return *Load::FromCounts(Eigen::Map<const LoadMatrix>(counts.data(), 1, std::ssize(counts)));
}

TEST(EvaluateBatchTest, TheFullestGpuIsThatOfTheSplit) {
  const Placement placement = PlacementOf(3, 2, {0, 1, 0, 2});
  const Evaluation equal = *Evaluate(BatchOf({10, 6, 0}), placement);
  const Evaluation batch = *EvaluateBatch(BatchOf({10, 6, 0}), placement);
  EXPECT_EQ(equal.max_gpu_load.front(), 11);
  EXPECT_EQ(batch.max_gpu_load.front(), 8);
  EXPECT_EQ(batch.mean_balancedness, 1);
}

TEST(EvaluateBatchTest, SpeedsAndEstimatesAreSplitToo) {
  const Placement placement = PlacementOf(1, 2, {0, 0});
  const GpuSpeeds speeds = *GpuSpeeds::Make(2, std::vector<double>{1, 0.5}, {});
  EXPECT_EQ(EvaluateBatch(BatchOf({9}), placement, &speeds)->max_gpu_load.front(), 6);
  const RealMatrix estimate = RealMatrix::Constant(1, 1, 4.5);
  const Evaluation evaluation = *EvaluateBatch(*Load::FromEstimates(estimate), placement, &speeds);
  EXPECT_NEAR(evaluation.max_gpu_load.front(), 3, 1e-12);
}

TEST(EvaluateBatchTest, ALoadOfAnotherShapeIsRefused) {
  EXPECT_FALSE(EvaluateBatch(BatchOf({1, 2}), PlacementOf(3, 2, {0, 1, 0, 2})).ok());
}

TEST(EvaluateBatchTest, SeveralBatchesWaitEachForItsOwnFullestGpu) {
  const Placement placement = PlacementOf(3, 2, {0, 1, 0, 2});  // expert 0 on both GPUs
  const std::vector<Load> batches = {BatchOf({2, 12, 2}), BatchOf({2, 2, 12})};
  const Evaluation each = *EvaluateBatches(batches, placement);
  EXPECT_EQ(each.max_gpu_load.front(), 12 + 12);
  EXPECT_EQ(each.peak_load, 24);
  EXPECT_EQ(each.gpu_loads.sum(), 32);
  EXPECT_DOUBLE_EQ(each.mean_balancedness, 16.0 / 24);
  EXPECT_DOUBLE_EQ(EvaluateBatch(BatchOf({4, 14, 14}), placement)->mean_balancedness, 1)
      << "their sum is even";
  EXPECT_FALSE(EvaluateBatches({}, placement).ok());
}

TEST(BatchSplitTest, AnExpertOnEveryGpuEvensThemOut) {
  constexpr int32_t kGpus = 16;
  std::vector<int32_t> slots;
  for (int32_t gpu = 0; gpu < kGpus; ++gpu) {
    slots.push_back(0);
    slots.push_back(gpu + 1);
  }
  const Placement placement = PlacementOf(kGpus + 1, kGpus, slots);
  std::vector<int64_t> counts(kGpus + 1);
  std::iota(counts.begin(), counts.end(), 1);
  counts[0] = 1000;
  const std::vector<int64_t> quotas = Quotas(placement, counts);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  for (size_t gpu = 0; gpu < kGpus; ++gpu) {
    EXPECT_LE(quotas[2 * gpu] + quotas[2 * gpu + 1], (total + kGpus - 1) / kGpus);
  }
}

}  // namespace
}  // namespace eplb
