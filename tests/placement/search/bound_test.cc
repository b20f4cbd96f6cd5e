#include "placement/search/bound.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "placement/evaluate.h"
#include "tests/placement/random_placement.h"
#include "tests/support/exhaustive.h"

namespace eplb {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(BoundTest, IsTheLargerOfMeanAndHeaviestReplica) {
  const Topology topology =
      *Topology::Make({.num_layers = 3, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
  LoadMatrix counts(3, 3);
  counts << 40, 40, 40,  // mean 60, heaviest replica 40
      100, 10, 10,       // the spare slot halves 100; mean 60
      400, 10, 10;       // 400 / 2 = 200 although the mean is 210
  const auto bounds = LowerBounds(*Load::FromCounts(counts), topology);
  ASSERT_TRUE(bounds.ok()) << bounds.status();
  EXPECT_THAT(*bounds, ElementsAre(60, 60, 210));
}

// Fewest slots with which no replica carries more than `most`.
int64_t SlotsNeeded(const LoadMatrix& counts, double most) {
  int64_t slots = 0;
  for (const int64_t count : counts.reshaped()) {
    slots += std::max<int64_t>(1, std::llround(std::ceil(static_cast<double>(count) / most)));
  }
  return slots;
}

TEST(BoundTest, IsTheLeastThresholdThatTheSlotsAllow) {
  constexpr uint64_t kSeed = 70;
  Random random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    const int32_t experts = Pick(random, 1, 20);
    // One slot per GPU: the mean is never above the heaviest replica.
    const int32_t slots = Pick(random, experts, 3 * experts);
    const Topology topology = *Topology::Make(
        {.num_layers = 1, .num_experts = experts, .num_slots = slots, .num_gpus = slots});
    LoadMatrix counts(1, experts);
    for (int64_t& cell : counts.reshaped()) cell = Pick(random, 1, 500);
    const double bound = LowerBounds(*Load::FromCounts(counts), topology)->front();
    ASSERT_LE(SlotsNeeded(counts, bound * (1 + 1e-9)), slots) << "seed " << kSeed << " case " << i;
    ASSERT_GT(SlotsNeeded(counts, bound * (1 - 1e-9)), slots) << "seed " << kSeed << " case " << i;
  }
}

TEST(BoundTest, NoRandomPlacementIsBelowIt) {
  constexpr uint64_t kSeed = 71;
  Random random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    const Topology topology = RandomTopology(random);
    RealMatrix estimates(topology.num_layers(), topology.num_experts());
    for (double& cell : estimates.reshaped()) cell = Pick(random, 0, 1000) / 7.0;
    const Load load = *Load::FromEstimates(estimates);
    const std::vector<double> bounds = *LowerBounds(load, topology);
    const Evaluation found = *Evaluate(load, RandomPlacement(random, topology));
    for (size_t layer = 0; layer < bounds.size(); ++layer) {
      ASSERT_LE(bounds[layer], found.max_gpu_load[layer] * (1 + 1e-12))
          << "seed " << kSeed << " case " << i << " layer " << layer;
    }
  }
}

TEST(BoundTest, NoPlacementOfTheSmallWorldIsBelowIt) {
  const SmallWorld world;
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 6, .num_gpus = 2});
  const std::vector<std::vector<int32_t>> placements = AllPlacements(world);
  constexpr int64_t kLoads[] = {0, 1, 2, 5};
  int32_t tight = 0;
  for (const std::vector<int64_t>& loads : AllLoads(world, kLoads)) {
    const Load load = *Load::FromCounts(Eigen::Map<const LoadMatrix>(loads.data(), 1, 4));
    const double bound = LowerBounds(load, topology)->front();
    const double best = BestMaxGpuLoad(world, placements, loads);
    ASSERT_LE(bound, best + 1e-12) << ::testing::PrintToString(loads);
    if (best <= bound + 1e-12) ++tight;
  }
  EXPECT_GT(tight, 128) << "a bound that most optima do not reach says little";
}

// No partition needs to put the two heavy expert groups on one node, so the nodes have 100 and 100.
// With three hot groups of four they have 200 and 110 at best.
TEST(BoundTest, StrictHierarchyIsTheBestPartitionOfGroups) {
  const Topology topology = *Topology::Make({.num_layers = 2,
                                             .num_experts = 8,
                                             .num_slots = 12,
                                             .num_gpus = 4,
                                             .num_nodes = 2,
                                             .num_groups = 4});
  LoadMatrix counts(2, 8);
  counts << 50, 50, 50, 50, 0, 0, 0, 0,  //
      50, 50, 50, 50, 50, 50, 5, 5;
  const Load load = *Load::FromCounts(counts);
  EXPECT_THAT(*LowerBounds(load, topology, {.hierarchy = Hierarchy::kStrict}),
              ElementsAre(50, 100));
  EXPECT_THAT(*LowerBounds(load, topology), ElementsAre(50, 77.5));
}

TEST(BoundTest, SpeedsAndUnusableGpusCount) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 9, .num_gpus = 3});
  const double given[] = {1, 1, 0.5};
  const int32_t unusable[] = {1};
  const GpuSpeeds speeds = *GpuSpeeds::Make(3, given, unusable);
  EXPECT_THAT(*LowerBounds(*Load::FromCounts(LoadMatrix::Constant(1, 3, 50)), topology,
                           {.speeds = &speeds}),
              ElementsAre(100));
}

// Five experts of 10 and three of 1 have no spare slot on four GPUs. Two of the tens share a GPU,
// although the mean is 13.25 and the largest unit 10.
TEST(BoundTest, WhereMoreLongUnitsThanGpusTwoShareOne) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 8, .num_slots = 8, .num_gpus = 4});
  LoadMatrix counts(1, 8);
  counts << 10, 10, 10, 10, 10, 1, 1, 1;
  const Load load = *Load::FromCounts(counts);
  EXPECT_NEAR(LowerBounds(load, topology)->front(), 20, 1e-6);
  EXPECT_THAT(*LowerBounds(load, topology, {.any_split = true}), ElementsAre(13.25));
}

TEST(BoundTest, RefusesALoadOfAnotherShape) {
  const Topology topology = *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 2});
  EXPECT_THAT(LowerBounds(*Load::FromCounts(LoadMatrix::Ones(1, 3)), topology).status().message(),
              HasSubstr("load has 1 layers x 3 experts, the topology has 1 x 2"));
}

}  // namespace

}  // namespace eplb
