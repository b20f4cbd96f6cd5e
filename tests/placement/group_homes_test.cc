#include "placement/group_homes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "placement/alias_placement.h"
#include "placement/evaluate.h"

namespace eplb {
namespace {

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

std::vector<int32_t> Row(const IndexMatrix& homes, Eigen::Index layer) {
  const auto row = homes.row(layer);
  return {row.begin(), row.end()};
}

TEST(GroupHomesTest, NoOtherHomesHaveALighterFullestNode) {
  const Topology topology = *Topology::Make({.num_layers = 20,
                                             .num_experts = 24,
                                             .num_slots = 32,
                                             .num_gpus = 8,
                                             .num_nodes = 4,
                                             .num_groups = 8});
  constexpr uint64_t kSeed = 7;
  const Load load = Draw(20, 24, kSeed);
  const IndexMatrix homes = *HomesByLoad(load, topology);
  for (Eigen::Index layer = 0; layer < 20; ++layer) {
    std::vector<int32_t> other = {0, 0, 1, 1, 2, 2, 3, 3};
    int64_t least = FullestNode(load, topology, layer, other);
    while (std::next_permutation(other.begin(), other.end())) {
      least = std::min(least, FullestNode(load, topology, layer, other));
    }
    EXPECT_EQ(FullestNode(load, topology, layer, Row(homes, layer)), least)
        << "seed " << kSeed << " layer " << layer;
  }
}

TEST(GroupHomesTest, EveryNodeIsHomeToAsManyGroups) {
  const Topology topology = *Topology::Make({.num_layers = 3,
                                             .num_experts = 64,
                                             .num_slots = 80,
                                             .num_gpus = 8,
                                             .num_nodes = 4,
                                             .num_groups = 32});  // too many ways to look at all
  const IndexMatrix homes = *HomesByLoad(Draw(3, 64, 9), topology);
  for (Eigen::Index layer = 0; layer < 3; ++layer) {
    const std::vector<int32_t> row = Row(homes, layer);
    for (int32_t node = 0; node < 4; ++node) EXPECT_EQ(std::count(row.begin(), row.end(), node), 8);
  }
}

TEST(GroupHomesTest, TheEvenPlacementIsAtTheMeanOfTheFullestNode) {
  const Topology topology = *Topology::Make({.num_layers = 4,
                                             .num_experts = 32,
                                             .num_slots = 48,
                                             .num_gpus = 8,
                                             .num_nodes = 2,
                                             .num_groups = 4});
  const Load load = Draw(4, 32, 11);
  const IndexMatrix homes = *HomesByLoad(load, topology);
  const SplitPlacement even = *SolveAlias(load, topology, homes);
  const Evaluation evaluation = *Evaluate(load, even.placement, {.shares = &even.shares});
  for (Eigen::Index layer = 0; layer < 4; ++layer) {
    const double node = static_cast<double>(FullestNode(load, topology, layer, Row(homes, layer)));
    EXPECT_LT(evaluation.max_gpu_load[static_cast<size_t>(layer)], node / 4 + 1);
  }
}

TEST(GroupHomesTest, ShapesThatDoNotFitAreRefused) {
  const auto make = [](int32_t experts, int32_t nodes, int32_t groups) {
    return *Topology::Make({.num_layers = 1,
                            .num_experts = experts,
                            .num_slots = 16,
                            .num_gpus = 4,
                            .num_nodes = nodes,
                            .num_groups = groups});
  };
  EXPECT_FALSE(HomesByLoad(Draw(1, 12, 1), make(12, 2, 3)).ok());
  EXPECT_FALSE(HomesByLoad(Draw(1, 10, 1), make(10, 2, 4)).ok());
  EXPECT_FALSE(HomesByLoad(Draw(1, 10, 1), make(12, 2, 4)).ok());
}

// Node 0 has one usable GPU of two, so it bears half of what node 1 does.
TEST(GroupHomesTest, ANodeWithAnUnusableGpuGetsLess) {
  const Topology topology = *Topology::Make({1, 2, 8, 4, 2, 2});
  LoadMatrix counts(1, 2);
  counts << 40, 20;
  const Load load = *Load::FromCounts(counts);
  const GpuSpeeds speeds = *GpuSpeeds::Make(4, {}, std::vector{1});
  EXPECT_EQ(Row(*HomesByLoad(load, topology, &speeds), 0), (std::vector<int32_t>{1, 0}));
  const GpuSpeeds half = *GpuSpeeds::Make(4, {}, std::vector{2, 3});
  EXPECT_EQ(HomesByLoad(load, topology, &half).status().message(), "node 1 has no usable GPU");
}

}  // namespace
}  // namespace eplb
