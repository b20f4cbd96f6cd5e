#include "placement/split/token_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "placement/evaluate.h"
#include "placement/gpu_speeds.h"
#include "tests/placement/random_placement.h"
#include "tests/support/split_oracle.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Pick;
using testing::Random;

Placement MakePlacement(int32_t num_experts, int32_t num_gpus,
                        const std::vector<int32_t>& physical_to_logical) {
  const Topology topology =
      *Topology::Make({.num_layers = 1,
                       .num_experts = num_experts,
                       .num_slots = static_cast<int32_t>(physical_to_logical.size()),
                       .num_gpus = num_gpus});
  return *Placement::FromSlots(
      topology, Eigen::Map<const IndexMatrix>(physical_to_logical.data(), 1, topology.num_slots()));
}

Load OneLayer(const std::vector<double>& tokens) {
  return *Load::FromEstimates(
      Eigen::Map<const RealMatrix>(tokens.data(), 1, static_cast<Eigen::Index>(tokens.size())));
}

std::vector<double> Shares(const TokenSplit& split, Eigen::Index layer) {
  const auto row = split.shares.row(layer);
  return {row.begin(), row.end()};
}

testing::SplitProblem Problem(const Load& load, const Placement& placement,
                              const std::vector<double>& speeds, int32_t layer) {
  testing::SplitProblem problem{.tokens = {}, .gpus_of = {}, .speeds = speeds};
  for (int32_t expert = 0; expert < load.num_experts(); ++expert) {
    problem.tokens.push_back(load.ToDouble()(layer, expert));
    problem.gpus_of.emplace_back();
    for (const int32_t slot : placement.ReplicasOf(LayerId{layer}, ExpertId{expert})) {
      problem.gpus_of.back().push_back(placement.topology().GpuOf(SlotId{slot}).value);
    }
  }
  return problem;
}

// What every split has, whatever the load.
void CheckShares(const Load& load, const Placement& placement, const std::vector<double>& speeds,
                 const TokenSplit& split) {
  const Topology& topology = placement.topology();
  const RealMatrix tokens = load.ToDouble();
  ASSERT_EQ(split.shares.rows(), topology.num_layers());
  ASSERT_EQ(split.shares.cols(), topology.num_slots());
  ASSERT_EQ(split.max_gpu_load.size(), static_cast<size_t>(topology.num_layers()));
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<double> sums(static_cast<size_t>(topology.num_experts()));
    std::vector<double> gpus(static_cast<size_t>(topology.num_gpus()));
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      const double share = split.shares(layer, slot);
      const int32_t expert = placement.ExpertIn(LayerId{layer}, SlotId{slot}).value;
      const int32_t gpu = topology.GpuOf(SlotId{slot}).value;
      ASSERT_GE(share, 0);
      ASSERT_LE(share, 1);
      sums[static_cast<size_t>(expert)] += share;
      gpus[static_cast<size_t>(gpu)] +=
          share * tokens(layer, expert) / speeds[static_cast<size_t>(gpu)];
      for (int32_t other = topology.FirstSlotOf(GpuId{gpu}).value; other < slot; ++other) {
        if (placement.ExpertIn(LayerId{layer}, SlotId{other}).value != expert) continue;
        ASSERT_DOUBLE_EQ(share, split.shares(layer, other)) << "slots of one GPU differ";
      }
      if (tokens(layer, expert) > 0) continue;
      ASSERT_EQ(share, 1.0 / placement.ReplicaCount(LayerId{layer}, ExpertId{expert}));
    }
    for (const double sum : sums) ASSERT_NEAR(sum, 1, 1e-12);
    const double largest = *std::max_element(gpus.begin(), gpus.end());
    ASSERT_NEAR(split.max_gpu_load[static_cast<size_t>(layer)], largest, 1e-12 * largest);
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

std::vector<double> RandomSpeeds(Random& random, const Topology& topology) {
  std::vector<double> speeds(static_cast<size_t>(topology.num_gpus()), 1.0);
  if (Pick(random, 0, 1) == 0) return speeds;
  for (double& speed : speeds) speed = Pick(random, 1, 20) / 10.0;
  return speeds;
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
    const Placement placement = testing::RandomPlacement(random, topology);
    const Load load = RandomLoad(random, topology);
    const std::vector<double> speeds = RandomSpeeds(random, topology);
    const GpuSpeeds gpu_speeds = *GpuSpeeds::Make(topology.num_gpus(), speeds, {});
    const auto split = SplitOptimally(load, placement, &gpu_speeds);
    ASSERT_TRUE(split.ok()) << split.status();
    ASSERT_NO_FATAL_FAILURE(CheckShares(load, placement, speeds, *split));
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      const double best = MaxLoadOverSubsets(Problem(load, placement, speeds, layer));
      ASSERT_NEAR(split->max_gpu_load[static_cast<size_t>(layer)], best, 1e-12 * best);
    }
  }
}

struct SplitShape {
  int32_t experts;
  int32_t slots;
  int32_t gpus;
};

TEST(TokenSplitTest, AgreesWithBisectionOnLargerShapes) {
  constexpr uint64_t kSeed = 502;
  Random random(kSeed);
  // The third has more GPUs than a machine word has bits.
  for (const SplitShape& shape :
       {SplitShape{64, 80, 16}, SplitShape{30, 96, 24}, SplitShape{70, 150, 75}}) {
    for (int i = 0; i < 6; ++i) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << kSeed << " slots " << shape.slots << ", " << i);
      const Topology topology = *Topology::Make({.num_layers = 1,
                                                 .num_experts = shape.experts,
                                                 .num_slots = shape.slots,
                                                 .num_gpus = shape.gpus});
      const Placement placement = testing::RandomPlacement(random, topology);
      const Load load = RandomLoad(random, topology);
      const std::vector<double> speeds = RandomSpeeds(random, topology);
      const GpuSpeeds gpu_speeds = *GpuSpeeds::Make(topology.num_gpus(), speeds, {});
      const auto split = SplitOptimally(load, placement, &gpu_speeds);
      ASSERT_TRUE(split.ok()) << split.status();
      ASSERT_NO_FATAL_FAILURE(CheckShares(load, placement, speeds, *split));
      const double best = MaxLoadByBisection(Problem(load, placement, speeds, 0));
      // The bisection's trials are less exact than the flow.
      EXPECT_NEAR(split->max_gpu_load[0], best, 1e-11 * best);
    }
  }
}

TEST(TokenSplitTest, MovesWhatIsAboveTheMean) {
  // Equal halves of expert 0 would make 70 and 50.
  const auto split = SplitOptimally(OneLayer({40, 50, 30}), MakePlacement(3, 2, {0, 1, 2, 0}));
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->max_gpu_load, ElementsAre(60));
  EXPECT_THAT(Shares(*split, 0), ElementsAre(0.25, 1, 1, 0.75));
}

TEST(TokenSplitTest, KeepsEqualSharesWhereTheyAreBest) {
  // GPU 0 is at 100 whatever is done; expert 1 keeps its halves although GPU 2 idles.
  const auto split =
      SplitOptimally(OneLayer({100, 60, 0}), MakePlacement(3, 3, {0, 0, 1, 2, 1, 2}));
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->max_gpu_load, ElementsAre(100));
  EXPECT_THAT(Shares(*split, 0), ElementsAre(0.5, 0.5, 0.5, 0.5, 0.5, 0.5));
}

TEST(TokenSplitTest, SlotsOfOneGpuTakeEqualParts) {
  // Thirds would be 20, 10 + 60: expert 0 leaves GPU 1.
  const auto split = SplitOptimally(OneLayer({30, 60}), MakePlacement(2, 2, {0, 0, 0, 1}));
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->max_gpu_load, ElementsAre(60));
  EXPECT_THAT(Shares(*split, 0), ElementsAre(0.5, 0.5, 0, 1));
}

TEST(TokenSplitTest, AFasterGpuTakesMore) {
  const GpuSpeeds speeds = *GpuSpeeds::Make(2, std::vector<double>{1, 0.5}, {});
  const auto split = SplitOptimally(OneLayer({90, 0}), MakePlacement(2, 2, {0, 1, 1, 0}), &speeds);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_DOUBLE_EQ(split->max_gpu_load[0], 60);
  EXPECT_NEAR(split->shares(0, 0), 2.0 / 3, 1e-15);
  EXPECT_NEAR(split->shares(0, 3), 1.0 / 3, 1e-15);
}

TEST(TokenSplitTest, NeverWorseThanTheEqualSplitAndTheSameTwice) {
  constexpr uint64_t kSeed = 503;
  Random random(kSeed);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    const Topology topology = testing::RandomTopology(random);
    const Placement placement = testing::RandomPlacement(random, topology);
    const Load load = RandomLoad(random, topology);
    const TokenSplit split = *SplitOptimally(load, placement);
    const Evaluation equal = *Evaluate(load, placement);
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      const auto at = static_cast<size_t>(layer);
      ASSERT_LE(split.max_gpu_load[at], equal.max_gpu_load[at] * (1 + 1e-13));
      if (split.max_gpu_load[at] < equal.max_gpu_load[at] * (1 - 1e-15)) continue;
      ASSERT_TRUE((split.shares.row(layer) == EqualShares(placement).row(layer)).all());
    }
    ASSERT_TRUE((SplitOptimally(load, placement)->shares == split.shares).all());
  }
}

TEST(TokenSplitTest, HugeAndTinyLoadsKeepTheirDigits) {
  const Placement placement = MakePlacement(3, 2, {0, 1, 2, 0});
  LoadMatrix counts(1, 3);
  constexpr int64_t kHuge = int64_t{1} << 61;
  counts << kHuge, kHuge + 5, kHuge - 5;
  const auto huge = SplitOptimally(*Load::FromCounts(counts), placement);
  ASSERT_TRUE(huge.ok()) << huge.status();
  EXPECT_THAT(Shares(*huge, 0), ElementsAre(0.5, 1, 1, 0.5));
  EXPECT_DOUBLE_EQ(huge->max_gpu_load[0], 1.5 * static_cast<double>(kHuge));

  constexpr double kLargest = std::numeric_limits<double>::max();
  constexpr double kSmallest = std::numeric_limits<double>::denorm_min();
  for (const double unit : {kLargest / 200, kSmallest}) {
    const auto split = SplitOptimally(OneLayer({40 * unit, 50 * unit, 30 * unit}), placement);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_NEAR(split->shares(0, 0), 0.25, 1e-12);
    EXPECT_DOUBLE_EQ(split->max_gpu_load[0], 60 * unit);
  }
  // One expert at both ends of the range.
  const auto far = SplitOptimally(OneLayer({kSmallest, kLargest / 2, 0}), placement);
  ASSERT_TRUE(far.ok()) << far.status();
  EXPECT_THAT(Shares(*far, 0), ElementsAre(0.5, 1, 1, 0.5));
}

TEST(TokenSplitTest, LayersWithoutLoadHaveEqualShares) {
  const Placement placement = MakePlacement(2, 2, {0, 1, 0, 0});
  const auto split = SplitOptimally(*Load::FromCounts(LoadMatrix::Zero(1, 2)), placement);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->max_gpu_load, ElementsAre(0));
  EXPECT_TRUE((split->shares == EqualShares(placement)).all());
}

TEST(TokenSplitTest, AnUnusableGpuHasNoPart) {
  const Placement placement = MakePlacement(3, 3, {0, 1, -1, -1, 2, 0});
  const GpuSpeeds speeds = *GpuSpeeds::Make(3, {}, std::vector<int32_t>{1});
  const Load load = OneLayer({10, 4, 0});
  const auto split = SplitOptimally(load, placement, &speeds);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->max_gpu_load, ElementsAre(7));
  EXPECT_THAT(Shares(*split, 0), ElementsAre(0.3, 1, 0, 0, 1, 0.7));
  const Evaluation found =
      *Evaluate(load, placement, {.speeds = &speeds, .shares = &split->shares});
  EXPECT_DOUBLE_EQ(found.max_gpu_load[0], 7);
}

TEST(TokenSplitTest, RefusesWhatDoesNotFit) {
  const Placement placement = MakePlacement(2, 2, {0, 1, 0, 1});
  const auto message = [&](const std::vector<double>& tokens, const GpuSpeeds& speeds) {
    return std::string(SplitOptimally(OneLayer(tokens), placement, &speeds).status().message());
  };
  const std::vector<double> slow = {1e-3, 1e-3};
  const std::vector<int32_t> first = {0};
  EXPECT_THAT(message({1, 2, 3}, GpuSpeeds::Equal(2)), HasSubstr("load has 1 layers x 3 experts"));
  EXPECT_THAT(message({1, 2}, GpuSpeeds::Equal(1)), HasSubstr("1 GPU speeds, the placement has 2"));
  EXPECT_THAT(message({1, 2}, *GpuSpeeds::Make(2, {}, first)), HasSubstr("GPU 0 is unusable"));
  EXPECT_THAT(message({1e307, 1e307}, *GpuSpeeds::Make(2, slow, {})),
              HasSubstr("above the range of double"));
}

TEST(LayerFlowTest, BothSearchesFindTheSameMaximum) {
  constexpr uint64_t kSeed = 504;
  Random random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    const int32_t gpus = Pick(random, 1, 64);
    const int32_t slots_per_gpu = Pick(random, 1, 6);
    std::vector<double> speeds(static_cast<size_t>(gpus), 1.0);
    std::vector<int32_t> gpu_of_slot;
    std::vector<std::vector<int32_t>> slots_of(
        static_cast<size_t>(Pick(random, 1, gpus * slots_per_gpu)));
    for (int32_t slot = 0; slot < gpus * slots_per_gpu; ++slot) {
      gpu_of_slot.push_back(slot / slots_per_gpu);
      slots_of[random() % slots_of.size()].push_back(slot);
    }
    for (double& speed : speeds) speed = Pick(random, 1, 3);
    LayerFlow masks(speeds, gpu_of_slot);
    LayerFlow lists(speeds, gpu_of_slot, LayerFlow::Search::kLists);
    for (const std::vector<int32_t>& slots : slots_of) {
      if (slots.empty()) continue;
      const double tokens = std::pow(Pick(random, 1, 1000), Pick(random, 1, 4));
      masks.Add(tokens, slots);
      lists.Add(tokens, slots);
    }
    const double best = lists.Minimise();
    ASSERT_NEAR(masks.Minimise(), best, 1e-13 * best) << "seed " << kSeed << " case " << i;
  }
}

TEST(LayerFlowTest, LayersDoNotRemember) {
  LayerFlow flow({1, 1}, {0, 0, 1, 1});
  const std::vector<int32_t> both = {0, 2};
  const std::vector<int32_t> one = {1};
  flow.Add(8, both);
  flow.Add(100, one);
  EXPECT_EQ(flow.Minimise(), 100);
  flow.Start();
  EXPECT_EQ(flow.Minimise(), 0);
  flow.Start();
  flow.Add(8, both);
  EXPECT_EQ(flow.Minimise(), 4);
}

}  // namespace
}  // namespace eplb
