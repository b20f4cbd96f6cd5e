#include "placement/search/node_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/evaluate.h"
#include "placement/split/alias_placement.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

constexpr uint64_t kNodePartitionSeed = 18;

double CostOf(const PartitionProblem& problem, const std::vector<int32_t>& node_of_group) {
  double cost = 0;
  for (int32_t node = 0; node < problem.num_nodes; ++node) {
    std::vector<int32_t> groups;
    for (int32_t group = 0; group < problem.num_groups; ++group) {
      if (node_of_group[static_cast<size_t>(group)] == node) groups.push_back(group);
    }
    cost = std::max(cost, problem.cost(problem.kind_of_node[static_cast<size_t>(node)], groups));
  }
  return cost;
}

void ExpectFits(const PartitionProblem& problem, const NodePartition& partition) {
  ASSERT_EQ(partition.node_of_group.size(), static_cast<size_t>(problem.num_groups));
  for (int32_t node = 0; node < problem.num_nodes; ++node) {
    EXPECT_EQ(std::count(partition.node_of_group.begin(), partition.node_of_group.end(), node),
              problem.num_groups / problem.num_nodes);
  }
  EXPECT_EQ(partition.cost, CostOf(problem, partition.node_of_group));
}

// Costs of all partitions, rising. Of those that differ in the numbers of interchangeable nodes
// only, one, when `interchangeable`.
std::vector<double> AllCosts(const PartitionProblem& problem, bool interchangeable) {
  std::vector<int32_t> nodes;
  nodes.reserve(static_cast<size_t>(problem.num_groups));
  for (int32_t group = 0; group < problem.num_groups; ++group) {
    nodes.push_back(group / (problem.num_groups / problem.num_nodes));
  }
  std::vector<double> costs;
  do {
    int32_t next = 0;
    const bool first_of_its_kind = std::all_of(nodes.begin(), nodes.end(), [&](int32_t node) {
      if (node > next) return false;
      next += node == next ? 1 : 0;
      return true;
    });
    if (interchangeable && !first_of_its_kind) continue;
    costs.push_back(CostOf(problem, nodes));
  } while (std::next_permutation(nodes.begin(), nodes.end()));
  std::sort(costs.begin(), costs.end());
  return costs;
}

// A cost that is no sum, so that nothing but looking at each set finds the least. Many ties.
PartitionProblem Arbitrary(uint64_t seed, int32_t groups, const std::vector<int32_t>& kinds) {
  return {.num_groups = groups,
          .num_nodes = static_cast<int32_t>(kinds.size()),
          .kind_of_node = kinds,
          .cost = [seed](int32_t kind, const std::vector<int32_t>& set) {
            EXPECT_TRUE(std::is_sorted(set.begin(), set.end()));
            uint64_t mixed = seed + static_cast<uint64_t>(kind) * 977;
            for (const int32_t group : set) {
              mixed = (mixed + static_cast<uint64_t>(group) + 1) * 0x9e3779b97f4a7c15U;
              mixed ^= mixed >> 29;
            }
            return static_cast<double>(mixed % 1000);
          }};
}

struct PartitionShape {
  int32_t groups;
  std::vector<int32_t> kinds;
};

void CheckAgainstAll(const PartitionShape& shape, uint64_t seed) {
  const PartitionProblem problem = Arbitrary(seed, shape.groups, shape.kinds);
  SCOPED_TRACE(
      absl::StrCat("seed ", seed, ", ", shape.groups, " groups, ", problem.num_nodes, " nodes"));
  ASSERT_TRUE(CanEnumerate(problem));
  const bool one_kind = std::set<int32_t>(shape.kinds.begin(), shape.kinds.end()).size() == 1;
  const std::vector<double> costs = AllCosts(problem, one_kind);
  for (const int32_t most : {1, 4, 32}) {
    const std::vector<NodePartition> found = CheapestPartitions(problem, most);
    ASSERT_EQ(found.size(), std::min(costs.size(), static_cast<size_t>(most)));
    std::set<std::vector<int32_t>> different;
    for (size_t i = 0; i < found.size(); ++i) {
      ExpectFits(problem, found[i]);
      EXPECT_EQ(found[i].cost, costs[i]);
      different.insert(found[i].node_of_group);
    }
    EXPECT_EQ(different.size(), found.size());
  }
}

TEST(NodePartitionTest, TheCheapestOfInterchangeableNodesAreFound) {
  for (const PartitionShape& shape : std::vector<PartitionShape>{{1, {0}},
                                                                 {4, {0}},
                                                                 {4, {0, 0, 0, 0}},
                                                                 {6, {0, 0}},
                                                                 {6, {0, 0, 0}},
                                                                 {8, {0, 0, 0, 0}},
                                                                 {9, {0, 0, 0}},
                                                                 {12, {0, 0}},
                                                                 {14, {0, 0}}}) {
    for (uint64_t seed = 0; seed < 10; ++seed) CheckAgainstAll(shape, kNodePartitionSeed + seed);
  }
}

TEST(NodePartitionTest, TheCheapestOfDifferentNodesAreFound) {
  for (const PartitionShape& shape : std::vector<PartitionShape>{{4, {0, 1, 2, 3}},
                                                                 {6, {0, 1}},
                                                                 {6, {0, 1, 0}},
                                                                 {6, {0, 1, 1}},
                                                                 {8, {0, 0, 2, 0}},
                                                                 {12, {0, 1}},
                                                                 {14, {0, 1}}}) {
    for (uint64_t seed = 0; seed < 5; ++seed) CheckAgainstAll(shape, kNodePartitionSeed + seed);
  }
}

TEST(NodePartitionTest, TheNumberOfPartitionsDecidesWhatIsEnumerated) {
  const auto one_kind = [](int32_t groups, int32_t nodes) {
    return CanEnumerate(Arbitrary(1, groups, std::vector<int32_t>(static_cast<size_t>(nodes))));
  };
  EXPECT_TRUE(one_kind(8, 4));    // 105
  EXPECT_TRUE(one_kind(12, 4));   // 15'400
  EXPECT_FALSE(one_kind(16, 4));  // 2.6 million
  EXPECT_TRUE(one_kind(16, 2));   // 6435
  EXPECT_FALSE(one_kind(18, 2));  // 24'310
  EXPECT_TRUE(one_kind(256, 1));  // 1
  EXPECT_TRUE(one_kind(64, 64));  // 1
  EXPECT_FALSE(one_kind(256, 8));
  EXPECT_TRUE(CanEnumerate(Arbitrary(1, 8, {0, 1, 2, 3})));    // 2520
  EXPECT_FALSE(CanEnumerate(Arbitrary(1, 12, {0, 1, 2, 3})));  // 369'600
}

// Group loads over node speeds, as layers have them.
PartitionProblem Sums(const std::vector<double>& load, const std::vector<double>& speed) {
  PartitionProblem problem = {.num_groups = static_cast<int32_t>(load.size()),
                              .num_nodes = static_cast<int32_t>(speed.size()),
                              .kind_of_node = {},
                              .cost = {}};
  for (const double s : speed) {
    problem.kind_of_node.push_back(
        static_cast<int32_t>(std::find(speed.begin(), speed.end(), s) - speed.begin()));
  }
  problem.cost = [load, speed](int32_t kind, const std::vector<int32_t>& groups) {
    double sum = 0;
    for (const int32_t group : groups) sum += load[static_cast<size_t>(group)];
    return sum / speed[static_cast<size_t>(kind)];
  };
  return problem;
}

TEST(NodePartitionTest, WhereThereAreTooManyNoExchangeHelpsTheOneFound) {
  SCOPED_TRACE("seed " + std::to_string(kNodePartitionSeed));
  Random random(kNodePartitionSeed);
  for (int i = 0; i < 60; ++i) {
    std::vector<double> speed(static_cast<size_t>(Pick(random, 4, 8)), 1.0);
    if (i % 2 == 1) {
      for (double& s : speed) s = Pick(random, 1, 3);
    }
    std::vector<double> load(speed.size() * static_cast<size_t>(Pick(random, 4, 6)));
    for (double& tokens : load) tokens = Pick(random, i % 5 == 0 ? 0 : 1, 100);
    const PartitionProblem problem = Sums(load, speed);
    ASSERT_FALSE(CanEnumerate(problem));
    const std::vector<NodePartition> found = CheapestPartitions(problem, 32);
    ASSERT_EQ(found.size(), 1);
    ExpectFits(problem, found.front());
    std::vector<int32_t> nodes = found.front().node_of_group;
    int at_the_maximum = 0;
    for (int32_t node = 0; node < problem.num_nodes; ++node) {
      std::vector<int32_t> groups;
      for (size_t g = 0; g < nodes.size(); ++g) {
        if (nodes[g] == node) groups.push_back(static_cast<int32_t>(g));
      }
      at_the_maximum += problem.cost(problem.kind_of_node[static_cast<size_t>(node)], groups) ==
                                found.front().cost
                            ? 1
                            : 0;
    }
    if (at_the_maximum > 1) continue;  // one exchange cannot lower two nodes
    for (size_t a = 0; a < nodes.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        std::swap(nodes[a], nodes[b]);
        EXPECT_GE(CostOf(problem, nodes) * (1 + 1e-12), found.front().cost);
        std::swap(nodes[a], nodes[b]);
      }
    }
  }
}

// Twelve nodes, one three times as fast as the others, and one heavy group each but for the fast
// one, which can take three.
TEST(NodePartitionTest, AFastNodeTakesTheHeavyGroupsThatOverburdenTheOthers) {
  const PartitionProblem problem = Sums({90, 90, 90, 30, 30, 30, 10, 10, 10, 10, 10, 10,
                                         10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10},
                                        {9, 1, 1, 1, 1, 1, 1, 1});
  ASSERT_FALSE(CanEnumerate(problem));
  EXPECT_LE(CheapestPartitions(problem, 1).front().cost, 50);
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

std::vector<int32_t> Row(const IndexMatrix& nodes, Eigen::Index layer) {
  const auto row = nodes.row(layer);
  return {row.begin(), row.end()};
}

TEST(NodesOfGroupsTest, NoOtherNodesHaveALighterFullestNode) {
  const Topology topology = *Topology::Make({.num_layers = 20,
                                             .num_experts = 24,
                                             .num_slots = 32,
                                             .num_gpus = 8,
                                             .num_nodes = 4,
                                             .num_groups = 8});
  constexpr uint64_t kSeed = 7;
  const Load load = Draw(20, 24, kSeed);
  const IndexMatrix nodes = *NodesOfGroups(load, topology, GpuSpeeds::Equal(8));
  for (Eigen::Index layer = 0; layer < 20; ++layer) {
    std::vector<int32_t> other = {0, 0, 1, 1, 2, 2, 3, 3};
    int64_t least = FullestNode(load, topology, layer, other);
    while (std::next_permutation(other.begin(), other.end())) {
      least = std::min(least, FullestNode(load, topology, layer, other));
    }
    EXPECT_EQ(FullestNode(load, topology, layer, Row(nodes, layer)), least)
        << "seed " << kSeed << " layer " << layer;
  }
}

TEST(NodesOfGroupsTest, EveryNodeHasAsManyGroups) {
  const Topology topology = *Topology::Make({.num_layers = 3,
                                             .num_experts = 64,
                                             .num_slots = 80,
                                             .num_gpus = 8,
                                             .num_nodes = 4,
                                             .num_groups = 32});  // too many ways to look at all
  const IndexMatrix nodes = *NodesOfGroups(Draw(3, 64, 9), topology, GpuSpeeds::Equal(8));
  for (Eigen::Index layer = 0; layer < 3; ++layer) {
    const std::vector<int32_t> row = Row(nodes, layer);
    for (int32_t node = 0; node < 4; ++node) EXPECT_EQ(std::count(row.begin(), row.end(), node), 8);
  }
}

TEST(NodesOfGroupsTest, TheEvenPlacementIsAtTheMeanOfTheFullestNode) {
  const Topology topology = *Topology::Make({.num_layers = 4,
                                             .num_experts = 32,
                                             .num_slots = 48,
                                             .num_gpus = 8,
                                             .num_nodes = 2,
                                             .num_groups = 4});
  const Load load = Draw(4, 32, 11);
  const IndexMatrix nodes = *NodesOfGroups(load, topology, GpuSpeeds::Equal(8));
  const EvenPlacement even = **PlaceEvenly(load, topology, GpuSpeeds::Equal(8), &nodes);
  const Evaluation evaluation = *Evaluate(load, even.placement, {.shares = &even.shares});
  for (Eigen::Index layer = 0; layer < 4; ++layer) {
    const double node = static_cast<double>(FullestNode(load, topology, layer, Row(nodes, layer)));
    EXPECT_LT(evaluation.max_gpu_load[static_cast<size_t>(layer)], node / 4 + 1);
  }
}

TEST(NodesOfGroupsTest, ShapesThatDoNotFitAreRefused) {
  const auto make = [](int32_t experts, int32_t nodes, int32_t groups) {
    return *Topology::Make({.num_layers = 1,
                            .num_experts = experts,
                            .num_slots = 16,
                            .num_gpus = 4,
                            .num_nodes = nodes,
                            .num_groups = groups});
  };
  EXPECT_FALSE(NodesOfGroups(Draw(1, 12, 1), make(12, 2, 3), GpuSpeeds::Equal(4)).ok());
  EXPECT_FALSE(NodesOfGroups(Draw(1, 10, 1), make(10, 2, 4), GpuSpeeds::Equal(4)).ok());
  EXPECT_FALSE(NodesOfGroups(Draw(1, 10, 1), make(12, 2, 4), GpuSpeeds::Equal(4)).ok());
}

// Node 0 has one usable GPU of two, so it bears half of what node 1 does.
TEST(NodesOfGroupsTest, ANodeWithAnUnusableGpuGetsLess) {
  const Topology topology = *Topology::Make({1, 2, 8, 4, 2, 2});
  LoadMatrix counts(1, 2);
  counts << 40, 20;
  const Load load = *Load::FromCounts(counts);
  const GpuSpeeds speeds = *GpuSpeeds::Make(4, {}, std::vector{1});
  EXPECT_EQ(Row(*NodesOfGroups(load, topology, speeds), 0), (std::vector<int32_t>{1, 0}));
  const GpuSpeeds half = *GpuSpeeds::Make(4, {}, std::vector{2, 3});
  EXPECT_EQ(NodesOfGroups(load, topology, half).status().message(), "node 1 has no usable GPU");
}

}  // namespace
}  // namespace eplb
