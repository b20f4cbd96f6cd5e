#include "placement/search/node_affinity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

namespace eplb {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

// Two nodes of two GPUs with two slots each; expert groups {0,1}, {2,3}.
Topology TwoNodes(int32_t layers = 1) {
  return *Topology::Make({.num_layers = layers,
                          .num_experts = 4,
                          .num_slots = 8,
                          .num_gpus = 4,
                          .num_nodes = 2,
                          .num_groups = 2});
}

TEST(NodeAffinityTest, AHomeHoldsEveryExpertOfTheGroup) {
  const std::vector<int32_t> slots = {2, 3, 2, 3, 0, 1, 0, 1};
  EXPECT_THAT(NodeAffinityOf(TwoNodes(), Hierarchy::kStrict, slots), Optional(ElementsAre(1, 0)));
  EXPECT_THAT(NodeAffinityOf(TwoNodes(), Hierarchy::kSoft, slots), Optional(ElementsAre(1, 0)));
}

TEST(NodeAffinityTest, AReplicaElsewhereIsSoftButNotStrict) {
  const std::vector<int32_t> slots = {2, 3, 2, 0, 0, 1, 0, 1};
  EXPECT_EQ(NodeAffinityOf(TwoNodes(), Hierarchy::kStrict, slots), std::nullopt);
  EXPECT_THAT(NodeAffinityOf(TwoNodes(), Hierarchy::kSoft, slots), Optional(ElementsAre(1, 0)));
}

TEST(NodeAffinityTest, AGroupThatNoNodeHoldsWholeHasNoHome) {
  const std::vector<int32_t> slots = {0, 2, 0, 2, 1, 3, 1, 3};
  EXPECT_EQ(NodeAffinityOf(TwoNodes(), Hierarchy::kSoft, slots), std::nullopt);
}

TEST(NodeAffinityTest, NodesAreHomeToEquallyManyGroupsWhenStrict) {
  const std::vector<int32_t> slots = {0, 1, 2, 3, -1, -1, -1, -1};
  EXPECT_EQ(NodeAffinityOf(TwoNodes(), Hierarchy::kStrict, slots), std::nullopt);
  EXPECT_THAT(NodeAffinityOf(TwoNodes(), Hierarchy::kSoft, slots), Optional(ElementsAre(0, 0)));
}

TEST(NodeAffinityTest, PrimariesMoveToTheLowestSlotOnAffineNode) {
  IndexMatrix slots(1, 8);
  slots << 2, 3, 2, 0, 0, 1, 0, 1;  // expert 0 is at home on node 1, its lowest slot is not
  const Placement placement = *Placement::FromSlots(TwoNodes(), slots);
  ASSERT_EQ(placement.PrimaryOf(LayerId{0}, ExpertId{0}), SlotId{3});
  const auto on_affine_node = WithPrimariesOnAffineNode(placement, Hierarchy::kSoft);
  ASSERT_TRUE(on_affine_node.ok()) << on_affine_node.status();
  EXPECT_THAT(on_affine_node->ReplicasOf(LayerId{0}, ExpertId{0}), ElementsAre(4, 3, 6));
  EXPECT_THAT(on_affine_node->ReplicasOf(LayerId{0}, ExpertId{2}), ElementsAre(0, 2));
}

Placement Make(const Topology& topology, std::initializer_list<std::initializer_list<int>> rows) {
  IndexMatrix slots(topology.num_layers(), topology.num_slots());
  Eigen::Index layer = 0;
  for (const auto& row : rows) {
    Eigen::Index slot = 0;
    for (const int expert : row) slots(layer, slot++) = expert;
    ++layer;
  }
  return *Placement::FromSlots(topology, slots);
}

Load LoadOf(std::initializer_list<std::initializer_list<int64_t>> rows) {
  LoadMatrix counts(static_cast<Eigen::Index>(rows.size()), 4);
  Eigen::Index layer = 0;
  for (const auto& row : rows) {
    Eigen::Index expert = 0;
    for (const int64_t tokens : row) counts(layer, expert++) = tokens;
    ++layer;
  }
  return *Load::FromCounts(counts);
}

TEST(CrossingTest, WhatReplicasOffTheHomeServeIsCounted) {
  // Expert 0 of group 0 (home node 0) has one of its three replicas on node 1: 60 / 3 of 100.
  const Placement placement = Make(TwoNodes(), {{0, 1, 0, 1, 2, 3, 0, 3}});
  const Load load = LoadOf({{60, 10, 20, 10}});
  EXPECT_DOUBLE_EQ(ComputeCrossingShare(load, placement)->max, 0.2);
  RealMatrix shares(1, 8);
  shares << 0.5, 0.5, 0.4, 0.5, 1, 0.5, 0.1, 0.5;
  EXPECT_DOUBLE_EQ(ComputeCrossingShare(load, placement, &shares)->max, 0.06);
}

TEST(CrossingTest, LayersWithoutLoadAreLeftOutOfTheMean) {
  const Placement placement = Make(
      TwoNodes(3), {{0, 1, 0, 1, 2, 3, 0, 3}, {0, 1, 0, 1, 2, 3, 0, 3}, {0, 1, 0, 1, 2, 3, 2, 3}});
  const CrossingShare share =
      *ComputeCrossingShare(LoadOf({{60, 10, 20, 10}, {0, 0, 0, 0}, {60, 10, 20, 10}}), placement);
  EXPECT_DOUBLE_EQ(share.mean, 0.1);
  EXPECT_DOUBLE_EQ(share.max, 0.2);
  const CrossingShare idle =
      *ComputeCrossingShare(LoadOf({{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}), placement);
  EXPECT_EQ(idle.mean, 0);
}

TEST(CrossingTest, SlotsOfAnUnusableGpuServeNothing) {
  const Placement placement = Make(TwoNodes(), {{0, 1, 0, 1, 2, 3, -1, -1}});
  EXPECT_EQ(ComputeCrossingShare(LoadOf({{6, 1, 2, 1}}), placement)->max, 0);
}

TEST(CrossingTest, TheLargestCountsStayFinite) {
  const Placement placement = Make(TwoNodes(), {{0, 1, 0, 1, 2, 3, 0, 3}});
  const Load load = LoadOf({{std::numeric_limits<int64_t>::max(), 0, 0, 0}});
  EXPECT_DOUBLE_EQ(ComputeCrossingShare(load, placement)->max, 1.0 / 3);
}

TEST(CrossingTest, WhatHasNoHomeIsRefusedWithItsLayer) {
  // Expert 0 and expert 1 are never on one node.
  const Placement placement = Make(TwoNodes(), {{0, 2, 0, 2, 1, 3, 1, 3}});
  const auto share = ComputeCrossingShare(LoadOf({{1, 1, 1, 1}}), placement);
  EXPECT_EQ(share.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(share.status().message()), HasSubstr("layer 0"));
}

TEST(CrossingTest, OtherShapesAreRefused) {
  const Placement placement = Make(TwoNodes(), {{0, 1, 0, 1, 2, 3, 2, 3}});
  EXPECT_FALSE(ComputeCrossingShare(LoadOf({{1, 1, 1, 1}, {1, 1, 1, 1}}), placement).ok());
}

}  // namespace

}  // namespace eplb
