#include "placement/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/placement/random_placement.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;

std::string Refusal(const TopologyOptions& options) {
  return std::string(Topology::Make(options).status().message());
}

TEST(TopologyTest, FirstGpusHoldTheSlotsLeftOver) {
  const auto topology =
      Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 11, .num_gpus = 4});
  ASSERT_TRUE(topology.ok()) << topology.status();
  EXPECT_FALSE(topology->equal_slots_per_gpu());
  EXPECT_EQ(topology->max_slots_per_gpu(), 3);
  EXPECT_EQ(topology->SlotsOf(GpuId{2}), 3);
  EXPECT_EQ(topology->SlotsOf(GpuId{3}), 2);
  EXPECT_EQ(topology->FirstSlotOf(GpuId{3}), SlotId{9});
}

TEST(TopologyTest, SlotsOfAGpuAreThoseThatNameIt) {
  constexpr uint64_t kSeed = 20;
  Random random(kSeed);
  for (int i = 0; i < 500; ++i) {
    const Topology topology = RandomTopology(random);
    int32_t slot = 0;
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      ASSERT_EQ(topology.FirstSlotOf(GpuId{gpu}).value, slot) << "seed " << kSeed << " case " << i;
      for (int32_t k = 0; k < topology.SlotsOf(GpuId{gpu}); ++k, ++slot) {
        ASSERT_EQ(topology.GpuOf(SlotId{slot}).value, gpu) << "seed " << kSeed << " case " << i;
      }
    }
    ASSERT_EQ(slot, topology.num_slots()) << "seed " << kSeed << " case " << i;
  }
}

TEST(TopologyTest, NodesAreRunsOfGpus) {
  const auto topology = Topology::Make(
      {.num_layers = 1, .num_experts = 8, .num_slots = 8, .num_gpus = 8, .num_nodes = 2});
  ASSERT_TRUE(topology.ok());
  EXPECT_EQ(topology->NodeOf(GpuId{3}), NodeId{0});
  EXPECT_EQ(topology->NodeOf(GpuId{4}), NodeId{1});
}

TEST(TopologyTest, RefusalNamesTheNumber) {
  const TopologyOptions good{.num_layers = 2,
                             .num_experts = 8,
                             .num_slots = 8,
                             .num_gpus = 4,
                             .num_nodes = 2,
                             .num_groups = 3};
  EXPECT_TRUE(Topology::Make(good).ok()) << "8 experts in 3 groups are for the policies to refuse";
  TopologyOptions bad = good;
  bad.num_layers = 0;
  EXPECT_THAT(Refusal(bad), HasSubstr("num_layers is 0"));
  bad = good;
  bad.num_groups = (1 << 20) + 1;
  EXPECT_THAT(Refusal(bad), HasSubstr("num_groups is 1048577"));
  bad = good;
  bad.num_slots = 7;
  EXPECT_THAT(Refusal(bad), HasSubstr("fewer than the 8 experts"));
  bad = good;
  bad.num_gpus = 10;
  EXPECT_THAT(Refusal(bad), HasSubstr("fewer than the 10 GPUs"));
  bad = good;
  bad.num_nodes = 3;
  EXPECT_THAT(Refusal(bad), HasSubstr("not a multiple of the 3 nodes"));
  bad = good;
  bad.num_layers = 1 << 20;
  bad.num_slots = 1 << 20;
  EXPECT_THAT(Refusal(bad), HasSubstr("num_layers x num_slots"));
}

TEST(TopologyTest, CheckSameNamesTheFirstNumberThatDiffers) {
  const Topology a = *Topology::Make({.num_layers = 2, .num_experts = 4, .num_slots = 6});
  const Topology b = *Topology::Make({.num_layers = 2, .num_experts = 5, .num_slots = 8});
  EXPECT_TRUE(CheckSameTopology("old", a, "new", a).ok());
  EXPECT_EQ(CheckSameTopology("old", a, "new", b).message(),
            "the old placement has 4 experts, the new placement has 5");
}

Topology Shape(int32_t nodes, int32_t groups, int32_t experts = 12) {
  return *Topology::Make({.num_layers = 1,
                          .num_experts = experts,
                          .num_slots = 12,
                          .num_gpus = 12,
                          .num_nodes = nodes,
                          .num_groups = groups});
}

TEST(HierarchyTest, StrictByDefaultWhereGroupsFitOnNodes) {
  EXPECT_EQ(DefaultHierarchy(Shape(2, 4)), Hierarchy::kStrict);
  EXPECT_EQ(DefaultHierarchy(Shape(4, 4)), Hierarchy::kStrict);
  EXPECT_EQ(DefaultHierarchy(Shape(4, 2)), Hierarchy::kNone);
  EXPECT_EQ(DefaultHierarchy(Shape(1, 4)), Hierarchy::kNone);
  EXPECT_EQ(DefaultHierarchy(Shape(1, 1)), Hierarchy::kNone);
}

TEST(HierarchyTest, GroupsThatDoNotFitAreNamed) {
  EXPECT_TRUE(CheckHierarchy(Shape(4, 2), Hierarchy::kNone).ok());
  EXPECT_TRUE(CheckHierarchy(Shape(2, 4), Hierarchy::kSoft).ok());
  EXPECT_THAT(CheckHierarchy(Shape(4, 2), Hierarchy::kStrict).message(),
              HasSubstr("strict needs expert groups in multiples of the 4 nodes, got 2"));
  EXPECT_THAT(CheckHierarchy(Shape(2, 4, 11), Hierarchy::kSoft).message(),
              HasSubstr("soft needs experts in multiples of the 4 expert groups, got 11"));
}

TEST(TopologyTest, EqualSlotsAreTheNextMultipleOfTheGpus) {
  EXPECT_EQ(EqualSlots(256, 32), 256);
  EXPECT_EQ(EqualSlots(257, 32), 288);
  EXPECT_EQ(EqualSlots(1, 7), 7);
}

}  // namespace

}  // namespace eplb
