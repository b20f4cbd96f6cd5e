#include "placement/search/node_affinity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "placement/evaluate.h"
#include "placement/split/alias_placement.h"

namespace eplb {

namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

// Two nodes of two GPUs with two slots each; expert groups {0,1}, {2,3}.
Topology Shape() {
  return *Topology::Make({.num_layers = 1,
                          .num_experts = 4,
                          .num_slots = 8,
                          .num_gpus = 4,
                          .num_nodes = 2,
                          .num_groups = 2});
}

TEST(NodeAffinityTest, AHomeHoldsEveryExpertOfTheGroup) {
  const std::vector<int32_t> slots = {2, 3, 2, 3, 0, 1, 0, 1};
  EXPECT_THAT(NodeAffinityOf(Shape(), Hierarchy::kStrict, slots), Optional(ElementsAre(1, 0)));
  EXPECT_THAT(NodeAffinityOf(Shape(), Hierarchy::kSoft, slots), Optional(ElementsAre(1, 0)));
}

TEST(NodeAffinityTest, AReplicaElsewhereIsSoftButNotStrict) {
  const std::vector<int32_t> slots = {2, 3, 2, 0, 0, 1, 0, 1};
  EXPECT_EQ(NodeAffinityOf(Shape(), Hierarchy::kStrict, slots), std::nullopt);
  EXPECT_THAT(NodeAffinityOf(Shape(), Hierarchy::kSoft, slots), Optional(ElementsAre(1, 0)));
}

TEST(NodeAffinityTest, AGroupThatNoNodeHoldsWholeHasNoHome) {
  const std::vector<int32_t> slots = {0, 2, 0, 2, 1, 3, 1, 3};
  EXPECT_EQ(NodeAffinityOf(Shape(), Hierarchy::kSoft, slots), std::nullopt);
}

TEST(NodeAffinityTest, NodesAreHomeToEquallyManyGroupsWhenStrict) {
  const std::vector<int32_t> slots = {0, 1, 2, 3, -1, -1, -1, -1};
  EXPECT_EQ(NodeAffinityOf(Shape(), Hierarchy::kStrict, slots), std::nullopt);
  EXPECT_THAT(NodeAffinityOf(Shape(), Hierarchy::kSoft, slots), Optional(ElementsAre(0, 0)));
}

TEST(NodeAffinityTest, PrimariesMoveToTheLowestSlotOnAffineNode) {
  IndexMatrix slots(1, 8);
  slots << 2, 3, 2, 0, 0, 1, 0, 1;  // expert 0 is at home on node 1, its lowest slot is not
  const Placement placement = *Placement::FromSlots(Shape(), slots);
  ASSERT_EQ(placement.PrimaryOf(LayerId{0}, ExpertId{0}), SlotId{3});
  const auto on_affine_node = WithPrimariesOnAffineNode(placement, Hierarchy::kSoft);
  ASSERT_TRUE(on_affine_node.ok()) << on_affine_node.status();
  EXPECT_THAT(on_affine_node->ReplicasOf(LayerId{0}, ExpertId{0}), ElementsAre(4, 3, 6));
  EXPECT_THAT(on_affine_node->ReplicasOf(LayerId{0}, ExpertId{2}), ElementsAre(0, 2));
}

Load Draw(int32_t layers, int32_t experts, uint64_t seed) {
  std::mt19937_64 random(seed);
  LoadMatrix counts(layers, experts);
  for (int64_t& tokens : counts.reshaped()) {
    tokens = static_cast<int64_t>(random() % 1000 * (random() % 7));
  }
  return *Load::FromCounts(counts);
}

// Tokens of the fullest node when group k is on node_of_group[k].
int64_t FullestNode(const Load& load, const Topology& topology, Eigen::Index layer,
                    const std::vector<int32_t>& node_of_group) {
  const Eigen::Index per_group = topology.num_experts() / topology.num_groups();
  std::vector<int64_t> nodes(static_cast<size_t>(topology.num_nodes()));
  for (Eigen::Index expert = 0; expert < topology.num_experts(); ++expert) {
    const int32_t node = node_of_group[static_cast<size_t>(expert / per_group)];
    nodes[static_cast<size_t>(node)] += load.counts()(layer, expert);
  }
  return *std::max_element(nodes.begin(), nodes.end());
}

std::vector<int32_t> Row(const IndexMatrix& affinities, Eigen::Index layer) {
  const auto row = affinities.row(layer);
  return {row.begin(), row.end()};
}

TEST(GroupAffinityTest, NoOtherHomesHaveALighterFullestNode) {
  const Topology topology = *Topology::Make({.num_layers = 20,
                                             .num_experts = 24,
                                             .num_slots = 32,
                                             .num_gpus = 8,
                                             .num_nodes = 4,
                                             .num_groups = 8});
  constexpr uint64_t kSeed = 7;
  const Load load = Draw(20, 24, kSeed);
  const IndexMatrix affinities = *NodeAffinityByLoad(load, topology);
  for (Eigen::Index layer = 0; layer < 20; ++layer) {
    std::vector<int32_t> other = {0, 0, 1, 1, 2, 2, 3, 3};
    int64_t least = FullestNode(load, topology, layer, other);
    while (std::next_permutation(other.begin(), other.end())) {
      least = std::min(least, FullestNode(load, topology, layer, other));
    }
    EXPECT_EQ(FullestNode(load, topology, layer, Row(affinities, layer)), least)
        << "seed " << kSeed << " layer " << layer;
  }
}

TEST(GroupAffinityTest, EveryNodeIsHomeToAsManyGroups) {
  const Topology topology = *Topology::Make({.num_layers = 3,
                                             .num_experts = 64,
                                             .num_slots = 80,
                                             .num_gpus = 8,
                                             .num_nodes = 4,
                                             .num_groups = 32});  // too many ways to look at all
  const IndexMatrix affinities = *NodeAffinityByLoad(Draw(3, 64, 9), topology);
  for (Eigen::Index layer = 0; layer < 3; ++layer) {
    const std::vector<int32_t> row = Row(affinities, layer);
    for (int32_t node = 0; node < 4; ++node) EXPECT_EQ(std::count(row.begin(), row.end(), node), 8);
  }
}

TEST(GroupAffinityTest, TheEvenPlacementIsAtTheMeanOfTheFullestNode) {
  const Topology topology = *Topology::Make({.num_layers = 4,
                                             .num_experts = 32,
                                             .num_slots = 48,
                                             .num_gpus = 8,
                                             .num_nodes = 2,
                                             .num_groups = 4});
  const Load load = Draw(4, 32, 11);
  const IndexMatrix affinities = *NodeAffinityByLoad(load, topology);
  const SplitPlacement even = *SolveAlias(load, topology, affinities);
  const Evaluation evaluation = *Evaluate(load, even.placement, {.shares = &even.shares});
  for (Eigen::Index layer = 0; layer < 4; ++layer) {
    const double node =
        static_cast<double>(FullestNode(load, topology, layer, Row(affinities, layer)));
    EXPECT_LT(evaluation.max_gpu_load[static_cast<size_t>(layer)], node / 4 + 1);
  }
}

TEST(GroupAffinityTest, ShapesThatDoNotFitAreRefused) {
  const auto make = [](int32_t experts, int32_t nodes, int32_t groups) {
    return *Topology::Make({.num_layers = 1,
                            .num_experts = experts,
                            .num_slots = 16,
                            .num_gpus = 4,
                            .num_nodes = nodes,
                            .num_groups = groups});
  };
  EXPECT_FALSE(NodeAffinityByLoad(Draw(1, 12, 1), make(12, 2, 3)).ok());
  EXPECT_FALSE(NodeAffinityByLoad(Draw(1, 10, 1), make(10, 2, 4)).ok());
  EXPECT_FALSE(NodeAffinityByLoad(Draw(1, 10, 1), make(12, 2, 4)).ok());
}

// Node 0 has one usable GPU of two, so it bears half of what node 1 does.
TEST(GroupAffinityTest, ANodeWithAnUnusableGpuGetsLess) {
  const Topology topology = *Topology::Make({1, 2, 8, 4, 2, 2});
  LoadMatrix counts(1, 2);
  counts << 40, 20;
  const Load load = *Load::FromCounts(counts);
  const GpuSpeeds speeds = *GpuSpeeds::Make(4, {}, std::vector{1});
  EXPECT_EQ(Row(*NodeAffinityByLoad(load, topology, &speeds), 0), (std::vector<int32_t>{1, 0}));
  const GpuSpeeds half = *GpuSpeeds::Make(4, {}, std::vector{2, 3});
  EXPECT_EQ(NodeAffinityByLoad(load, topology, &half).status().message(),
            "node 1 has no usable GPU");
}

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 2 nodes of 2 GPUs with 2 slots each; 4 experts in 2 expert groups.
Topology TwoNodes(int32_t layers) {
  return *Topology::Make({.num_layers = layers,
                          .num_experts = 4,
                          .num_slots = 8,
                          .num_gpus = 4,
                          .num_nodes = 2,
                          .num_groups = 2});
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

TEST(CrossingTest, NothingCrossesWhereGroupsStayOnTheirNode) {
  const Placement placement = Make(TwoNodes(1), {{2, 3, 2, 3, 0, 1, 0, 1}});
  const CrossingShare share = *ComputeCrossingShare(LoadOf({{9, 1, 4, 4}}), placement);
  EXPECT_THAT(share.per_layer, ElementsAre(0.0));
  EXPECT_EQ(share.max, 0);
}

TEST(CrossingTest, WhatReplicasOffTheHomeServeIsCounted) {
  // Expert 0 of group 0 (home node 0) has one of its three replicas on node 1: 60 / 3 of 100.
  const Placement placement = Make(TwoNodes(1), {{0, 1, 0, 1, 2, 3, 0, 3}});
  const Load load = LoadOf({{60, 10, 20, 10}});
  EXPECT_THAT(ComputeCrossingShare(load, placement)->per_layer, ElementsAre(DoubleEq(0.2)));
  RealMatrix shares(1, 8);
  shares << 0.5, 0.5, 0.4, 0.5, 1, 0.5, 0.1, 0.5;
  EXPECT_THAT(ComputeCrossingShare(load, placement, &shares)->per_layer,
              ElementsAre(DoubleEq(0.06)));
}

TEST(CrossingTest, LayersWithoutLoadAreLeftOutOfTheMean) {
  const Placement placement = Make(
      TwoNodes(3), {{0, 1, 0, 1, 2, 3, 0, 3}, {0, 1, 0, 1, 2, 3, 0, 3}, {0, 1, 0, 1, 2, 3, 2, 3}});
  const CrossingShare share =
      *ComputeCrossingShare(LoadOf({{60, 10, 20, 10}, {0, 0, 0, 0}, {60, 10, 20, 10}}), placement);
  EXPECT_THAT(share.per_layer, ElementsAre(DoubleEq(0.2), 0.0, 0.0));
  EXPECT_DOUBLE_EQ(share.mean, 0.1);
  EXPECT_DOUBLE_EQ(share.max, 0.2);
  const CrossingShare idle =
      *ComputeCrossingShare(LoadOf({{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}), placement);
  EXPECT_EQ(idle.mean, 0);
}

TEST(CrossingTest, SlotsOfAnUnusableGpuServeNothing) {
  const Placement placement = Make(TwoNodes(1), {{0, 1, 0, 1, 2, 3, -1, -1}});
  EXPECT_THAT(ComputeCrossingShare(LoadOf({{6, 1, 2, 1}}), placement)->per_layer, ElementsAre(0.0));
}

TEST(CrossingTest, TheLargestCountsStayFinite) {
  const Placement placement = Make(TwoNodes(1), {{0, 1, 0, 1, 2, 3, 0, 3}});
  const Load load = LoadOf({{std::numeric_limits<int64_t>::max(), 0, 0, 0}});
  EXPECT_THAT(ComputeCrossingShare(load, placement)->per_layer, ElementsAre(DoubleEq(1.0 / 3)));
}

TEST(CrossingTest, WhatHasNoHomeIsRefusedWithItsLayer) {
  // Expert 0 and expert 1 are never on one node.
  const Placement placement = Make(TwoNodes(1), {{0, 2, 0, 2, 1, 3, 1, 3}});
  const auto share = ComputeCrossingShare(LoadOf({{1, 1, 1, 1}}), placement);
  EXPECT_EQ(share.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(share.status().message()), HasSubstr("layer 0"));
}

TEST(CrossingTest, OtherShapesAreRefused) {
  const Placement placement = Make(TwoNodes(1), {{0, 1, 0, 1, 2, 3, 2, 3}});
  EXPECT_FALSE(ComputeCrossingShare(LoadOf({{1, 1, 1, 1}, {1, 1, 1, 1}}), placement).ok());
  const RealMatrix shares = RealMatrix::Constant(1, 7, 0.5);
  EXPECT_FALSE(ComputeCrossingShare(LoadOf({{1, 1, 1, 1}}), placement, &shares).ok());
}

}  // namespace

}  // namespace eplb
