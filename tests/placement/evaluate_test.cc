#include "placement/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::DoubleEq;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

TEST(EvaluateTest, ReplicasShareTheirExpertsTokensEqually) {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 3, .num_slots = 4, .num_gpus = 2});
  IndexMatrix slots(2, 4);
  slots << 0, 1, 0, 2,  //
      0, 0, 1, 2;
  LoadMatrix counts(2, 3);
  counts << 60, 10, 30,  //
      60, 10, 30;
  const auto result = Evaluate(*Load::FromCounts(counts), *Placement::FromSlots(topology, slots));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->gpu_loads(0, 0), 40);
  EXPECT_EQ(result->gpu_loads(0, 1), 60);
  EXPECT_EQ(result->gpu_loads(1, 0), 60);
  EXPECT_EQ(result->gpu_loads(1, 1), 40);
  EXPECT_THAT(result->max_gpu_load, ElementsAre(60, 60));
  EXPECT_THAT(result->balancedness, Each(Optional(DoubleEq(50.0 / 60))));
  EXPECT_EQ(result->peak_load, 120);
}

TEST(EvaluateTest, ALayerWithoutLoadHasNoBalancednessAndIsInNoMean) {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 2, .num_slots = 2, .num_gpus = 2});
  LoadMatrix counts(2, 2);
  counts << 0, 0,  //
      3, 1;
  const auto result = Evaluate(*Load::FromCounts(counts), Placement::Static(topology));
  ASSERT_TRUE(result.ok());
  EXPECT_THAT(result->balancedness, ElementsAre(std::nullopt, Optional(DoubleEq(2.0 / 3))));
  EXPECT_THAT(result->mean_balancedness, Optional(DoubleEq(2.0 / 3)));
  EXPECT_THAT(result->min_balancedness, Optional(DoubleEq(2.0 / 3)));
  const auto idle =
      Evaluate(*Load::FromCounts(LoadMatrix::Zero(2, 2)), Placement::Static(topology));
  EXPECT_EQ(idle->mean_balancedness, std::nullopt);
  EXPECT_EQ(idle->min_balancedness, std::nullopt);
  EXPECT_EQ(idle->peak_load, 0);
}

TEST(EvaluateTest, AGpuHalfAsFastIsTwiceAsLoadedAndAnUnusableOneIsLeftOut) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 3, .num_gpus = 3});
  IndexMatrix slots(1, 3);
  slots << 0, -1, 1;
  const auto placement = Placement::FromSlots(topology, slots);
  ASSERT_TRUE(placement.ok()) << placement.status();
  LoadMatrix counts(1, 2);
  counts << 60, 40;
  const double given[] = {1, 1, 0.5};
  const int32_t unusable[] = {1};
  const GpuSpeeds speeds = *GpuSpeeds::Make(3, given, unusable);
  const auto result = Evaluate(*Load::FromCounts(counts), *placement, {.speeds = &speeds});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->gpu_loads(0, 0), 60);
  EXPECT_EQ(result->gpu_loads(0, 1), 0);
  EXPECT_EQ(result->gpu_loads(0, 2), 80);
  EXPECT_THAT(result->balancedness, ElementsAre(Optional(DoubleEq(70.0 / 80))));
}

TEST(EvaluateTest, AnExpertOnAnUnusableGpuIsRefused) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 2, .num_gpus = 2});
  const int32_t unusable[] = {1};
  const GpuSpeeds speeds = *GpuSpeeds::Make(2, {}, unusable);
  EXPECT_THAT(Evaluate(*Load::FromCounts(LoadMatrix::Ones(1, 2)), Placement::Static(topology),
                       {.speeds = &speeds})
                  .status()
                  .message(),
              HasSubstr("layer 0 slot 1 is on unusable GPU 1 and holds expert 1"));
}

TEST(EvaluateTest, GivenSharesSplitTheTokens) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 1, .num_slots = 2, .num_gpus = 2});
  RealMatrix shares(1, 2);
  shares << 0.75, 0.25;
  const auto result = Evaluate(*Load::FromCounts(LoadMatrix::Constant(1, 1, 100)),
                               Placement::Static(topology), {.shares = &shares});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->gpu_loads(0, 0), 75);
  EXPECT_EQ(result->gpu_loads(0, 1), 25);
}

TEST(EvaluateTest, NoTokenIsLostOrInvented) {
  constexpr uint64_t kSeed = 50;
  Random random(kSeed);
  for (int i = 0; i < 300; ++i) {
    const Topology topology = RandomTopology(random);
    LoadMatrix counts(topology.num_layers(), topology.num_experts());
    for (int64_t& cell : counts.reshaped()) cell = Pick(random, 0, 1000);
    const auto result = Evaluate(*Load::FromCounts(counts), RandomPlacement(random, topology));
    ASSERT_TRUE(result.ok());
    ASSERT_NEAR(result->gpu_loads.sum(), static_cast<double>(counts.sum()), 1e-6)
        << "seed " << kSeed << " case " << i;
    ASSERT_LE(result->mean_balancedness, 1) << "seed " << kSeed << " case " << i;
  }
}

TEST(EvaluateTest, RefusesALoadOfAnotherShape) {
  const Topology topology = *Topology::Make({.num_layers = 2, .num_experts = 2, .num_slots = 2});
  EXPECT_THAT(Evaluate(*Load::FromCounts(LoadMatrix::Ones(3, 2)), Placement::Static(topology))
                  .status()
                  .message(),
              HasSubstr("load has 3 layers x 2 experts, the placement has 2 x 2"));
}

TEST(EvaluateTest, DuplicatesAreReplicasBeyondTheFirstOnAGpu) {
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 6, .num_gpus = 2});
  IndexMatrix slots(1, 6);
  slots << 0, 0, 0, 1, 0, 1;
  EXPECT_EQ(CountDuplicates(*Placement::FromSlots(topology, slots)), 3);
}

}  // namespace
}  // namespace eplb
