#include "placement/search/node_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using testing::Pick;
using testing::Random;

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

}  // namespace
}  // namespace eplb
