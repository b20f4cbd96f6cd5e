#include "placement/split/alias_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "placement/evaluate.h"
#include "placement/split/token_split.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

// A problem of PlaceEvenly: without `node_of_group` all GPUs are one domain.
struct EvenCase {
  const Load& load;
  const Topology& topology;
  const IndexMatrix* node_of_group = nullptr;
  const GpuSpeeds* speeds = nullptr;

  absl::StatusOr<std::optional<EvenPlacement>> Solve() const {
    return PlaceEvenly(load, topology,
                       speeds == nullptr ? GpuSpeeds::Equal(topology.num_gpus()) : *speeds,
                       node_of_group);
  }
  int32_t NodeOf(int32_t layer, int32_t expert) const {
    if (node_of_group == nullptr) return 0;
    return (*node_of_group)(layer, expert / (topology.num_experts() / topology.num_groups()));
  }
};

// Checks that an expert's shares are fractions that sum to 1, and are equal without load. Every
// usable GPU must have the mean load of its domain, and every expert must be in its domain. At most
// one expert of a GPU continues on another one.
void CheckEven(const EvenCase& problem, const EvenPlacement& even) {
  const Topology& topology = problem.topology;
  ASSERT_EQ(CountDuplicates(even.placement), 0);
  const RealMatrix tokens = problem.load.ToDouble();
  const int32_t domains = problem.node_of_group == nullptr ? 1 : topology.num_nodes();
  const int32_t gpus_of_domain = topology.num_gpus() / domains;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<double> means(static_cast<size_t>(domains));
    std::vector<double> sums(static_cast<size_t>(topology.num_experts()));
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      means[static_cast<size_t>(problem.NodeOf(layer, expert))] += tokens(layer, expert);
    }
    for (int32_t domain = 0; domain < domains; ++domain) {
      int32_t usable = 0;
      for (int32_t gpu = domain * gpus_of_domain; gpu < (domain + 1) * gpus_of_domain; ++gpu) {
        usable += problem.speeds == nullptr || problem.speeds->Usable(GpuId{gpu}) ? 1 : 0;
      }
      means[static_cast<size_t>(domain)] /= usable;
    }
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      double gpu_load = 0;
      int32_t continued = 0;
      const int32_t first = topology.FirstSlotOf(GpuId{gpu}).value;
      for (int32_t slot = first; slot < first + topology.SlotsOf(GpuId{gpu}); ++slot) {
        const int32_t expert = even.placement.ExpertIn(LayerId{layer}, SlotId{slot}).value;
        const double share = even.shares(layer, slot);
        if (expert < 0) {
          ASSERT_EQ(share, 0);
          continue;
        }
        ASSERT_EQ(problem.NodeOf(layer, expert), gpu / gpus_of_domain);
        ASSERT_GE(share, 0);
        ASSERT_LE(share, 1);
        double& sum = sums[static_cast<size_t>(expert)];
        sum += share;
        gpu_load += share * tokens(layer, expert);
        if (tokens(layer, expert) == 0) {
          ASSERT_EQ(share, 1.0 / even.placement.ReplicaCount(LayerId{layer}, ExpertId{expert}));
        } else {
          continued += share > 0 && sum < 1 - 1e-9 ? 1 : 0;
        }
      }
      ASSERT_LE(continued, 1) << "layer " << layer << " GPU " << gpu;
      ASSERT_LE(gpu_load, means[static_cast<size_t>(gpu / gpus_of_domain)] * (1 + 1e-12))
          << "layer " << layer << " GPU " << gpu;
    }
    for (const double sum : sums) ASSERT_NEAR(sum, 1, 1e-12);
  }
}

void SolveAndCheck(const EvenCase& problem) {
  const auto even = problem.Solve();
  ASSERT_TRUE(even.ok()) << even.status();
  ASSERT_TRUE(even->has_value());
  CheckEven(problem, **even);
}

// Kinds 0..6: small with ties, uniform, skewed as a power, one expert with half, one with all,
// Zipf in random order, mostly zeros.
LoadMatrix RandomCounts(Random& random, const Topology& topology, int32_t kind) {
  LoadMatrix counts(topology.num_layers(), topology.num_experts());
  for (Eigen::Index layer = 0; layer < counts.rows(); ++layer) {
    std::vector<int32_t> order(static_cast<size_t>(topology.num_experts()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (Eigen::Index expert = 0; expert < counts.cols(); ++expert) {
      const double uniform = Pick(random, 0, 1 << 20) / 1048576.0;
      const int32_t rank = order[static_cast<size_t>(expert)];
      int64_t& count = counts(layer, expert);
      switch (kind) {
        case 0:
          count = Pick(random, 0, 3);
          break;
        case 1:
          count = Pick(random, 0, 100000);
          break;
        case 2:
          count = std::llround(1e9 * std::pow(uniform, 12));
          break;
        case 3:
          count = rank == 0 ? 1000 * (counts.cols() - 1) : Pick(random, 900, 1100);
          break;
        case 4:
          count = rank == 0 ? Pick(random, 1, 1000000) : 0;
          break;
        case 5:
          count = std::llround(1e6 / std::pow(rank + 1, 1.2));
          break;
        default:
          count = Pick(random, 0, 9) == 0 ? Pick(random, 1, 500) : 0;
      }
    }
  }
  return counts;
}

TEST(AliasPlacementTest, EveryLoadOfTheKnownModelsIsExactlyEven) {
  constexpr uint64_t kSeed = 601;
  Random random(kSeed);
  constexpr TopologyOptions kShapes[] = {
      {.num_layers = 4, .num_experts = 256, .num_slots = 288, .num_gpus = 32},
      {.num_layers = 4, .num_experts = 256, .num_slots = 320, .num_gpus = 64},
      {.num_layers = 4, .num_experts = 128, .num_slots = 144, .num_gpus = 16},
      {.num_layers = 4, .num_experts = 384, .num_slots = 512, .num_gpus = 64}};
  for (const TopologyOptions& shape : kShapes) {
    const Topology topology = *Topology::Make(shape);
    for (int32_t kind = 0; kind < 7; ++kind) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << kSeed << " slots " << shape.num_slots << " kind " << kind);
      const Load load = *Load::FromCounts(RandomCounts(random, topology, kind));
      ASSERT_NO_FATAL_FAILURE(SolveAndCheck({load, topology}));
    }
  }
}

// S = E + G, more slots, GPUs with more slots than others, one whole expert a GPU (k = 1), and
// estimates of every magnitude all occur.
TEST(AliasPlacementTest, RandomShapesAndLoadsAreExactlyEven) {
  constexpr uint64_t kSeed = 602;
  Random random(kSeed);
  int32_t tight = 0;
  int32_t single = 0;
  int32_t uneven = 0;
  for (int i = 0; i < 5000; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    const int32_t gpus = Pick(random, 1, 9);
    const int32_t whole = Pick(random, 1, 6);
    const int32_t more = Pick(random, 0, 1) == 0 ? 0 : Pick(random, 0, gpus - 1);
    const int32_t fewest = whole + (more > 0 ? 2 : 1);  // experts, for no two replicas on a GPU
    if (fewest > whole * gpus) continue;
    const int32_t experts =
        Pick(random, 0, 1) == 0 ? whole * gpus : Pick(random, fewest, whole * gpus);
    const Topology topology = *Topology::Make({.num_layers = 2,
                                               .num_experts = experts,
                                               .num_slots = (whole + 1) * gpus + more,
                                               .num_gpus = gpus});
    tight += topology.num_slots() == experts + gpus ? 1 : 0;
    single += whole == 1 ? 1 : 0;
    uneven += more > 0 ? 1 : 0;
    const LoadMatrix counts = RandomCounts(random, topology, Pick(random, 0, 6));
    const double unit = std::ldexp(1.0 / 7, Pick(random, -900, 900));
    const Load load =
        i % 2 == 0 ? *Load::FromCounts(counts) : *Load::FromEstimates(counts.cast<double>() * unit);
    ASSERT_NO_FATAL_FAILURE(SolveAndCheck({load, topology}));
  }
  EXPECT_GT(tight, 500);
  EXPECT_GT(single, 100);
  EXPECT_GT(uneven, 500);
}

TEST(AliasPlacementTest, ALayerWithoutLoadKeepsItsExpertsSpread) {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 10, .num_slots = 24, .num_gpus = 6});
  LoadMatrix counts = LoadMatrix::Zero(2, 10);
  counts(1, 3) = 7;
  const Load load = *Load::FromCounts(counts);
  const EvenCase problem{load, topology};
  const EvenPlacement even = **problem.Solve();
  const auto replicas = even.placement.logical_replica_count().row(0);
  EXPECT_EQ(replicas.minCoeff(), 2);
  EXPECT_EQ(replicas.maxCoeff(), 3);
  CheckEven(problem, even);
}

// 3 nodes of 3 GPUs, of which GPU 4 is unusable; S % G != 0 occurs.
TEST(AliasPlacementTest, UnusableGpusStayEmptyAndTheOthersAreEven) {
  constexpr uint64_t kSeed = 608;
  Random random(kSeed);
  const GpuSpeeds speeds = *GpuSpeeds::Make(9, std::vector<double>(9, 0.5), std::vector{4});
  IndexMatrix nodes(2, 3);
  nodes << 0, 1, 2, 2, 0, 1;
  for (int32_t i = 0; i < 80; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    const Topology topology = *Topology::Make({2, 12, 27 + i % 10, 9, 3, 3});
    const Load load = *Load::FromCounts(RandomCounts(random, topology, i % 7));
    const EvenCase problem{load, topology, i % 2 == 0 ? nullptr : &nodes, &speeds};
    ASSERT_NO_FATAL_FAILURE(SolveAndCheck(problem));
    EXPECT_FALSE((**problem.Solve()).placement.Holds(GpuId{4}));
  }
}

TEST(AliasPlacementTest, EveryNodeIsExactlyEvenWithItsOwnGroups) {
  constexpr uint64_t kSeed = 606;
  Random random(kSeed);
  for (int i = 0; i < 60; ++i) {
    const Topology topology = i % 2 == 0 ? *Topology::Make({3, 256, 288, 32, 4, 8})
                                         : *Topology::Make({3, 12, 24, 6, 2, 4});
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    IndexMatrix nodes(topology.num_layers(), topology.num_groups());
    for (Eigen::Index layer = 0; layer < nodes.rows(); ++layer) {
      auto row = nodes.row(layer);
      for (Eigen::Index group = 0; group < row.size(); ++group) {
        row(group) = static_cast<int32_t>(group % topology.num_nodes());
      }
      std::shuffle(row.begin(), row.end(), random);
    }
    const Load load = *Load::FromCounts(RandomCounts(random, topology, i % 7));
    ASSERT_NO_FATAL_FAILURE(SolveAndCheck({load, topology, &nodes}));
  }
}

TEST(AliasPlacementTest, NodesMayHoldDifferentNumbersOfGroupsWhileTheyFit) {
  const auto applies = [](const Topology& topology, std::vector<int32_t> nodes) {
    const IndexMatrix node_of_group = Eigen::Map<const IndexMatrix>(nodes.data(), 1, 3);
    const Load load = *Load::FromCounts(LoadMatrix::Ones(1, topology.num_experts()));
    const EvenCase problem{load, topology, &node_of_group};
    const auto even = *problem.Solve();
    if (even.has_value()) CheckEven(problem, *even);
    return even.has_value();
  };
  // 4 GPUs of 4 slots: a node has room for 2 * 3 whole experts.
  EXPECT_FALSE(applies(*Topology::Make({1, 9, 16, 4, 2, 3}), {0, 1, 0}))
      << "node 1 has fewer experts than GPU slots";
  const Topology fewer = *Topology::Make({1, 12, 24, 6, 2, 3});
  EXPECT_TRUE(applies(fewer, {0, 1, 0}));
  EXPECT_FALSE(applies(fewer, {0, 0, 0})) << "12 experts > 3 * 3, and none on node 1";
}

TEST(AliasPlacementTest, DoesNotApplyWhereItCannotMakeGpusEven) {
  const auto applies = [](int32_t experts, int32_t slots, int32_t gpus,
                          const GpuSpeeds* speeds = nullptr) {
    const Topology topology = *Topology::Make({1, experts, slots, gpus, 1, 1});
    const Load load = *Load::FromCounts(LoadMatrix::Ones(1, experts));
    return EvenCase{load, topology, nullptr, speeds}.Solve()->has_value();
  };
  EXPECT_TRUE(applies(256, 288, 32));
  EXPECT_FALSE(applies(256, 256, 32));
  EXPECT_FALSE(applies(256, 288, 36)) << "S < E + G";
  EXPECT_FALSE(applies(10, 15, 4)) << "3 slots on one GPU";
  EXPECT_FALSE(applies(3, 8, 2)) << "4 slots a GPU for 3 experts";
  EXPECT_FALSE(applies(4, 9, 2)) << "a GPU of 5 slots would hold an expert twice";
  EXPECT_TRUE(applies(8, 15, 4)) << "4 4 4 3 slots";
  const GpuSpeeds differ = *GpuSpeeds::Make(2, std::vector{1.0, 0.5}, {});
  EXPECT_FALSE(applies(8, 10, 2, &differ));

  const Topology topology = *Topology::Make({1, 8, 10, 2, 1, 1});
  const Load other = *Load::FromCounts(LoadMatrix::Ones(1, 7));
  EXPECT_THAT(EvenCase({other, topology}).Solve().status().message(),
              HasSubstr("load has 1 layers x 7 experts, the topology has 1 x 8"));
}

// The slots that no token needs hold experts whose load per replica is high.
TEST(AliasPlacementTest, LeftOverSlotsHoldTheHeaviestThatTheGpuLacks) {
  // GPUs {3, 2}, {0}, {1} have 30 tokens each; five slots are left. GPU 0 takes expert 0 (30). GPU
  // 1 takes 1 (30) and 2 (20). GPU 2 takes 0 (15 by then) and 3 (10, the same as 2, which has more
  // replicas).
  LoadMatrix counts(1, 4);
  counts << 30, 30, 20, 10;
  const Load load = *Load::FromCounts(counts);
  const Topology topology = *Topology::Make({1, 4, 9, 3, 1, 1});
  const EvenPlacement even = **EvenCase{load, topology}.Solve();
  std::vector<std::set<int32_t>> held(3);
  for (int32_t slot = 0; slot < 9; ++slot) {
    held[static_cast<size_t>(slot / 3)].insert(
        even.placement.ExpertIn(LayerId{0}, SlotId{slot}).value);
  }
  EXPECT_EQ(held, (std::vector<std::set<int32_t>>{{0, 2, 3}, {0, 1, 2}, {0, 1, 3}}));
}

}  // namespace
}  // namespace eplb
