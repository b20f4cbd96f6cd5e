#include "placement/split/token_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "placement/split/batch_split.h"
#include "tests/placement/random_placement.h"
#include "tests/support/split_oracle.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kSmallest = std::numeric_limits<double>::denorm_min();
// Speeds are rounded to 24 bits of the fastest one's; the slowest here is 1 / 20 of it.
constexpr double kPrecision = 1e-6;

Load OneLayer(const std::vector<double>& tokens) {
  return *Load::FromEstimates(
      Eigen::Map<const RealMatrix>(tokens.data(), 1, static_cast<Eigen::Index>(tokens.size())));
}

// The largest GPU load of one layer that the oracle finds.
double OracleOf(const Load& load, const Placement& placement, const GpuSpeeds& speeds,
                int32_t layer) {
  SplitProblem problem{
      .tokens = {}, .gpus_of = {}, .speeds = {speeds.speeds().begin(), speeds.speeds().end()}};
  for (int32_t expert = 0; expert < load.num_experts(); ++expert) {
    problem.tokens.push_back(load.ToDouble()(layer, expert));
    problem.gpus_of.emplace_back();
    for (const int32_t slot : placement.ReplicasOf(LayerId{layer}, ExpertId{expert})) {
      problem.gpus_of.back().push_back(placement.topology().GpuOf(SlotId{slot}).value);
    }
  }
  return MaxLoadOverSubsets(problem);
}

// Properties of every split, whatever the load.
void CheckShares(const Load& load, const Placement& placement, const RealMatrix& shares) {
  const Topology& topology = placement.topology();
  const RealMatrix tokens = load.ToDouble();
  ASSERT_EQ(shares.rows(), topology.num_layers());
  ASSERT_EQ(shares.cols(), topology.num_slots());
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<double> sums(static_cast<size_t>(topology.num_experts()));
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      const double share = shares(layer, slot);
      const int32_t expert = placement.ExpertIn(LayerId{layer}, SlotId{slot}).value;
      ASSERT_GE(share, 0);
      ASSERT_LE(share, 1);
      sums[static_cast<size_t>(expert)] += share;
      if (tokens(layer, expert) > 0) continue;
      ASSERT_EQ(share, 1.0 / placement.ReplicaCount(LayerId{layer}, ExpertId{expert}));
    }
    for (const double sum : sums) ASSERT_NEAR(sum, 1, 1e-12);
  }
}

// Loads of every kind: even, skewed, with ties, with experts that have none, of any magnitude.
Load RandomLoad(Random& random, const Topology& topology) {
  RealMatrix cells(topology.num_layers(), topology.num_experts());
  const int32_t kind = Pick(random, 0, 3);
  const double unit = std::ldexp(1.0, Pick(random, -300, 300));
  for (double& cell : cells.reshaped()) {
    const double uniform = Pick(random, 0, 1 << 20) / 1e6;
    cell = kind == 0   ? uniform
           : kind == 1 ? std::pow(uniform, 8)
           : kind == 2 ? Pick(random, 0, 3)
                       : std::exp(Pick(random, -300, 300) / 10.0);
    cell *= unit;
  }
  return *Load::FromEstimates(cells);
}

GpuSpeeds RandomSpeeds(Random& random, int32_t num_gpus) {
  std::vector<double> speeds(static_cast<size_t>(num_gpus), 1.0);
  const bool equal = Pick(random, 0, 1) == 0;
  for (double& speed : speeds) speed = equal ? 1 : Pick(random, 1, 20) / 10.0;
  return *GpuSpeeds::Make(num_gpus, speeds, {});
}

TEST(ScaledTokensTest, KeepsProportionsAtEveryMagnitude) {
  for (const double unit : {1.0, kLargest / 16, kSmallest, 1e-300, 3e200}) {
    EXPECT_THAT(ScaledTokens(std::vector<double>{unit, 2 * unit, 0, unit}, 1 << 20),
                ElementsAre(1 << 18, 1 << 19, 0, 1 << 18))
        << unit;
  }
  EXPECT_THAT(ScaledTokens(std::vector<double>{0, 0}, 8), ElementsAre(0, 0));
  EXPECT_THAT(ScaledTokens(std::vector<double>{kSmallest, kLargest}, 8), ElementsAre(0, 8));
  const std::vector<double> million(1 << 20, 1.0);
  const std::vector<int64_t> scaled = ScaledTokens(million, int64_t{1} << 61);
  EXPECT_EQ(std::accumulate(scaled.begin(), scaled.end(), int64_t{0}), int64_t{1} << 61);
}

TEST(TokenSplitTest, IsTheLargestRatioOverAllSetsOfGpus) {
  constexpr uint64_t kSeed = 501;
  Random random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    const int32_t experts = Pick(random, 1, 16);
    const int32_t gpus = Pick(random, 1, 10);
    const int32_t least = std::max(experts, gpus);
    const Topology topology = *Topology::Make({.num_layers = Pick(random, 1, 3),
                                               .num_experts = experts,
                                               .num_slots = Pick(random, least, 2 * least + 4),
                                               .num_gpus = gpus});
    const Placement placement = RandomPlacement(random, topology);
    const Load load = RandomLoad(random, topology);
    const GpuSpeeds speeds = RandomSpeeds(random, gpus);
    const auto shares = SplitOptimally(load, placement, &speeds);
    ASSERT_TRUE(shares.ok()) << shares.status();
    ASSERT_NO_FATAL_FAILURE(CheckShares(load, placement, *shares));
    const Evaluation split = *Evaluate(load, placement, {.speeds = &speeds, .shares = &*shares});
    const Evaluation equal = *Evaluate(load, placement, {.speeds = &speeds});
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      const double found = split.max_gpu_load[static_cast<size_t>(layer)];
      const double best = OracleOf(load, placement, speeds, layer);
      ASSERT_NEAR(found, best, kPrecision * best);
      ASSERT_LE(found, equal.max_gpu_load[static_cast<size_t>(layer)] * (1 + kPrecision));
    }
    ASSERT_TRUE((*SplitOptimally(load, placement, &speeds) == *shares).all());
  }
}

TEST(TokenSplitTest, CountsAndTheirSharesHaveOnePeakOnMoreGpusThanAWordHasBits) {
  constexpr uint64_t kSeed = 502;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const Topology topology =
      *Topology::Make({.num_layers = 6, .num_experts = 70, .num_slots = 150, .num_gpus = 75});
  const Placement placement = RandomPlacement(random, topology);
  LoadMatrix counts(6, 70);
  for (int64_t& count : counts.reshaped()) count = Pick(random, 0, 100'000'000);
  const Load load = *Load::FromCounts(counts);
  const GpuSpeeds speeds = RandomSpeeds(random, 75);
  const RealMatrix shares = *SplitOptimally(load, placement, &speeds);
  const Evaluation split = *Evaluate(load, placement, {.speeds = &speeds, .shares = &shares});
  const Evaluation batch = *EvaluateBatch(load, placement, &speeds);
  for (size_t layer = 0; layer < 6; ++layer) {
    EXPECT_NEAR(split.max_gpu_load[layer], batch.max_gpu_load[layer],
                kPrecision * batch.max_gpu_load[layer]);
  }
}

TEST(TokenSplitTest, SmallCasesByHand) {
  const struct {
    const char* name;
    Placement placement;
    std::vector<double> tokens;
    std::vector<double> speeds;
    std::vector<double> shares;
  } cases[] = {{"equal halves of expert 0 would make 70 and 50",
                OneLayerPlacement(3, 2, {0, 1, 2, 0}),
                {40, 50, 30},
                {1, 1},
                {0.25, 1, 1, 0.75}},
               {"equal shares are best",
                OneLayerPlacement(3, 2, {0, 1, 2, 0, 1, 2}),
                {60, 80, 60},
                {1, 1},
                {0.5, 0.5, 0.5, 0.5, 0.5, 0.5}},
               {"an odd number of tokens",
                OneLayerPlacement(1, 3, {0, 0, 0}),
                {7},
                {1, 1, 1},
                {1.0 / 3, 1.0 / 3, 1.0 / 3}},
               {"slots of one GPU",
                OneLayerPlacement(2, 2, {0, 0, 0, 1}),
                {60, 60},
                {1, 1},
                {0.5, 0.5, 0, 1}},
               {"a faster GPU takes more",
                OneLayerPlacement(1, 2, {0, 0}),
                {90},
                {1, 0.5},
                {2.0 / 3, 1.0 / 3}},
               {"an unusable GPU",
                OneLayerPlacement(3, 3, {0, 1, -1, -1, 2, 0}),
                {10, 4, 0},
                {1, 0, 1},
                {0.3, 1, 0, 0, 1, 0.7}},
               {"no load",
                OneLayerPlacement(2, 2, {0, 1, 0, 0}),
                {0, 0},
                {1, 1},
                {1.0 / 3, 1, 1.0 / 3, 1.0 / 3}},
               {"2^63",
                OneLayerPlacement(3, 2, {0, 1, 2, 0}),
                {3e18, 4e18, 2e18},
                {1, 1},
                {1.0 / 6, 1, 1, 5.0 / 6}},
               {"the largest doubles",
                OneLayerPlacement(3, 2, {0, 1, 2, 0}),
                {kLargest / 5, kLargest / 4, kLargest * 0.15},
                {1, 1},
                {0.25, 1, 1, 0.75}},
               {"the smallest doubles",
                OneLayerPlacement(3, 2, {0, 1, 2, 0}),
                {40 * kSmallest, 50 * kSmallest, 30 * kSmallest},
                {1, 1},
                {0.25, 1, 1, 0.75}},
               {"both ends of the range",
                OneLayerPlacement(3, 2, {0, 1, 2, 0}),
                {kSmallest, kLargest / 2, 0},
                {1, 1},
                {0.5, 1, 1, 0.5}}};
  for (const auto& c : cases) {
    std::vector<int32_t> unusable;
    std::vector<double> speeds = c.speeds;
    for (size_t gpu = 0; gpu < speeds.size(); ++gpu) {
      if (speeds[gpu] > 0) continue;
      unusable.push_back(static_cast<int32_t>(gpu));
      speeds[gpu] = 1;
    }
    const GpuSpeeds made = *GpuSpeeds::Make(static_cast<int32_t>(speeds.size()), speeds, unusable);
    const auto shares = SplitOptimally(OneLayer(c.tokens), c.placement, &made);
    ASSERT_TRUE(shares.ok()) << c.name << ": " << shares.status();
    for (size_t slot = 0; slot < c.shares.size(); ++slot) {
      EXPECT_NEAR((*shares)(0, static_cast<Eigen::Index>(slot)), c.shares[slot], 1e-9)
          << c.name << ", slot " << slot;
    }
  }
}

TEST(TokenSplitTest, WhatDoesNotFitIsRefused) {
  const Placement placement = OneLayerPlacement(2, 2, {0, 1, 0, 1});
  const auto message = [&](const std::vector<double>& tokens, const GpuSpeeds& speeds) {
    return std::string(SplitOptimally(OneLayer(tokens), placement, &speeds).status().message());
  };
  const std::vector<int32_t> first = {0};
  EXPECT_THAT(message({1, 2, 3}, GpuSpeeds::Equal(2)), HasSubstr("load has 1 layers x 3 experts"));
  EXPECT_THAT(message({1, 2}, GpuSpeeds::Equal(1)), HasSubstr("1 GPU speeds, the placement has 2"));
  EXPECT_THAT(message({1, 2}, *GpuSpeeds::Make(2, {}, first)), HasSubstr("GPU 0 is unusable"));
}

}  // namespace
}  // namespace eplb
