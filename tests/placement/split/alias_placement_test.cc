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
using testing::Pick;
using testing::Random;

int64_t CeilOfMean(int64_t sum, int64_t gpus) { return sum / gpus + (sum % gpus != 0 ? 1 : 0); }

// The domains of a layer: every node, or the whole.
int32_t NumDomains(const Topology& topology, const IndexMatrix& node_of_group) {
  return node_of_group.size() == 0 ? 1 : topology.num_nodes();
}

int32_t DomainOf(const Topology& topology, const IndexMatrix& node_of_group, int32_t layer,
                 int32_t expert) {
  if (node_of_group.size() == 0) return 0;
  return node_of_group(layer, expert / (topology.num_experts() / topology.num_groups()));
}

// Conservation, ceil(mean) on every GPU, one continued expert a GPU.
void CheckQuotas(const LoadMatrix& counts, const SplitPlacement& split,
                 const IndexMatrix& node_of_group) {
  const Topology& topology = split.placement.topology();
  const int32_t domains = NumDomains(topology, node_of_group);
  const int32_t gpus_per_domain = topology.num_gpus() / domains;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<int64_t> left(counts.row(layer).begin(), counts.row(layer).end());
    std::vector<int64_t> sums(static_cast<size_t>(domains));
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      sums[static_cast<size_t>(DomainOf(topology, node_of_group, layer, expert))] +=
          counts(layer, expert);
    }
    for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
      int64_t gpu_load = 0;
      int32_t continued = 0;
      const int32_t first = topology.FirstSlotOf(GpuId{gpu}).value;
      for (int32_t slot = first; slot < first + topology.SlotsOf(GpuId{gpu}); ++slot) {
        const int64_t quota = split.quotas(layer, slot);
        const int32_t expert = split.placement.ExpertIn(LayerId{layer}, SlotId{slot}).value;
        ASSERT_GE(quota, 0);
        gpu_load += quota;
        left[static_cast<size_t>(expert)] -= quota;
        if (quota > 0 && left[static_cast<size_t>(expert)] > 0) ++continued;
        ASSERT_EQ(DomainOf(topology, node_of_group, layer, expert), gpu / gpus_per_domain);
      }
      const int64_t sum = sums[static_cast<size_t>(gpu / gpus_per_domain)];
      ASSERT_LE(gpu_load, CeilOfMean(sum, gpus_per_domain)) << "layer " << layer << " GPU " << gpu;
      ASSERT_LE(continued, 1) << "layer " << layer << " GPU " << gpu;
    }
    for (const int64_t rest : left) ASSERT_EQ(rest, 0) << "layer " << layer;
  }
}

// Shares are the quotas' fractions; the placement itself holds each expert, or it could not be.
void CheckShares(const Load& load, const SplitPlacement& split) {
  const Topology& topology = split.placement.topology();
  ASSERT_EQ(CountDuplicates(split.placement), 0);
  ASSERT_EQ(split.shares.rows(), topology.num_layers());
  ASSERT_EQ(split.shares.cols(), topology.num_slots());
  const RealMatrix tokens = load.ToDouble();
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<double> sums(static_cast<size_t>(topology.num_experts()));
    for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
      const int32_t expert = split.placement.ExpertIn(LayerId{layer}, SlotId{slot}).value;
      const double share = split.shares(layer, slot);
      ASSERT_GE(share, 0);
      ASSERT_LE(share, 1);
      sums[static_cast<size_t>(expert)] += share;
      if (tokens(layer, expert) == 0) {
        ASSERT_EQ(share, 1.0 / split.placement.ReplicaCount(LayerId{layer}, ExpertId{expert}));
      } else if (load.is_counts()) {
        ASSERT_NEAR(share * tokens(layer, expert), static_cast<double>(split.quotas(layer, slot)),
                    1e-12 * tokens(layer, expert));
      }
    }
    for (const double sum : sums) ASSERT_NEAR(sum, 1, 1e-12);
  }
}

void SolveAndCheck(const Topology& topology, const LoadMatrix& counts) {
  ASSERT_TRUE(AliasApplies(topology));
  const Load load = *Load::FromCounts(counts);
  const auto split = SolveAlias(load, topology);
  ASSERT_TRUE(split.ok()) << split.status();
  ASSERT_NO_FATAL_FAILURE(CheckShares(load, *split));
  ASSERT_NO_FATAL_FAILURE(CheckQuotas(counts, *split, IndexMatrix()));
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
      ASSERT_NO_FATAL_FAILURE(SolveAndCheck(topology, RandomCounts(random, topology, kind)));
    }
  }
}

// S = E + G, more slots, and one whole expert a GPU (k = 1) all occur.
TEST(AliasPlacementTest, RandomShapesAndLoadsAreExactlyEven) {
  constexpr uint64_t kSeed = 602;
  Random random(kSeed);
  int32_t tight = 0;
  int32_t single = 0;
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    const int32_t gpus = Pick(random, 1, 9);
    const int32_t whole = Pick(random, 1, 6);
    const int32_t fewest = whole + 1;  // experts, for no two replicas on a GPU
    if (fewest > whole * gpus) continue;
    const int32_t experts =
        Pick(random, 0, 1) == 0 ? whole * gpus : Pick(random, fewest, whole * gpus);
    const Topology topology = *Topology::Make({.num_layers = 2,
                                               .num_experts = experts,
                                               .num_slots = (whole + 1) * gpus,
                                               .num_gpus = gpus});
    tight += topology.num_slots() == experts + gpus ? 1 : 0;
    single += whole == 1 ? 1 : 0;
    ASSERT_NO_FATAL_FAILURE(
        SolveAndCheck(topology, RandomCounts(random, topology, Pick(random, 0, 6))));
  }
  EXPECT_GT(tight, 500);
  EXPECT_GT(single, 100);
}

TEST(AliasPlacementTest, EveryLoadOfASmallWorldIsExactlyEven) {
  // 3 GPUs of 2 slots, 3 experts: k = 1; and 2 GPUs of 3 slots, 4 experts: k = 2.
  for (const TopologyOptions& shape :
       {TopologyOptions{.num_layers = 1, .num_experts = 3, .num_slots = 6, .num_gpus = 3},
        TopologyOptions{.num_layers = 1, .num_experts = 4, .num_slots = 6, .num_gpus = 2}}) {
    const Topology topology = *Topology::Make(shape);
    for (int32_t code = 0; code < 6 * 6 * 6 * 6; ++code) {
      LoadMatrix counts(1, shape.num_experts);
      int32_t rest = code;
      for (int64_t& count : counts.reshaped()) {
        count = rest % 6;
        rest /= 6;
      }
      SCOPED_TRACE(code);
      ASSERT_NO_FATAL_FAILURE(SolveAndCheck(topology, counts));
    }
  }
}

TEST(AliasPlacementTest, ALayerWithoutLoadKeepsItsExpertsSpread) {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 10, .num_slots = 24, .num_gpus = 6});
  LoadMatrix counts = LoadMatrix::Zero(2, 10);
  counts(1, 3) = 7;
  const auto split = SolveAlias(*Load::FromCounts(counts), topology);
  ASSERT_TRUE(split.ok()) << split.status();
  const auto replicas = split->placement.logical_replica_count().row(0);
  EXPECT_EQ(replicas.minCoeff(), 2);
  EXPECT_EQ(replicas.maxCoeff(), 3);
  EXPECT_TRUE((split->quotas.row(0) == 0).all());
  EXPECT_EQ(CountDuplicates(split->placement), 0);
}

// 3 nodes of 3 GPUs, of which GPU 4 is unusable; S % G != 0 occurs.
TEST(AliasPlacementTest, UnusableGpusStayEmptyAndTheOthersAreEven) {
  constexpr uint64_t kSeed = 608;
  Random random(kSeed);
  const GpuSpeeds speeds = *GpuSpeeds::Make(9, std::vector<double>(9, 0.5), std::vector{4});
  IndexMatrix affinities(2, 3);
  affinities << 0, 1, 2, 2, 0, 1;
  for (int32_t i = 0; i < 40; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    const Topology topology = *Topology::Make({2, 12, 27 + i % 10, 9, 3, 3});
    const LoadMatrix counts = RandomCounts(random, topology, i % 7);
    const Load load = *Load::FromCounts(counts);
    for (const bool by_node : {false, true}) {
      const auto split = by_node ? SolveAlias(load, topology, affinities, &speeds)
                                 : SolveAlias(load, topology, &speeds);
      ASSERT_TRUE(split.ok()) << split.status();
      EXPECT_EQ(CountDuplicates(split->placement), 0);
      for (int32_t layer = 0; layer < 2; ++layer) {
        for (int32_t gpu = 0; gpu < 9; ++gpu) {
          const int32_t home = gpu / 3;
          const int64_t usable = !by_node ? 8 : home == 1 ? 2 : 3;
          int64_t sum = 0;
          for (int32_t e = 0; e < 12; ++e) {
            if (!by_node || affinities(layer, e / 4) == home) sum += counts(layer, e);
          }
          const auto tokens = split->quotas.row(layer).segment(
              topology.FirstSlotOf(GpuId{gpu}).value, topology.SlotsOf(GpuId{gpu}));
          EXPECT_EQ(split->placement.Holds(GpuId{gpu}), gpu != 4);
          EXPECT_LE(tokens.sum(), gpu == 4 ? 0 : CeilOfMean(sum, usable)) << "GPU " << gpu;
        }
        EXPECT_EQ(split->quotas.row(layer).sum(), counts.row(layer).sum());
      }
    }
  }
}

TEST(AliasPlacementTest, EstimatesAreEvenToTheLastBits) {
  constexpr uint64_t kSeed = 604;
  Random random(kSeed);
  const Topology topology =
      *Topology::Make({.num_layers = 3, .num_experts = 64, .num_slots = 80, .num_gpus = 16});
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    const double unit = std::ldexp(1.0, Pick(random, -1060, 950));
    const RealMatrix cells =
        RandomCounts(random, topology, Pick(random, 0, 6)).cast<double>() * (unit / 7);
    const Load load = *Load::FromEstimates(cells);
    const auto split = SolveAlias(load, topology);
    ASSERT_TRUE(split.ok()) << split.status();
    ASSERT_EQ(split->quotas.size(), 0);
    if (unit < 1e-290) continue;  // products of a share and a denormal have few digits
    ASSERT_NO_FATAL_FAILURE(CheckShares(load, *split));
    for (Eigen::Index layer = 0; layer < cells.rows(); ++layer) {
      RealMatrix gpus = RealMatrix::Zero(1, 16);
      for (int32_t slot = 0; slot < 80; ++slot) {
        const int32_t expert = split->placement.physical_to_logical_map()(layer, slot);
        gpus(0, slot / 5) += split->shares(layer, slot) * cells(layer, expert);
      }
      ASSERT_LE(gpus.maxCoeff(), cells.row(layer).sum() / 16 * (1 + 1e-12));
    }
  }
}

TEST(AliasPlacementTest, TheFlowOnItsPlacementFindsTheSameMaximum) {
  constexpr uint64_t kSeed = 605;
  SCOPED_TRACE(kSeed);
  Random random(kSeed);
  const Topology topology =
      *Topology::Make({.num_layers = 7, .num_experts = 256, .num_slots = 288, .num_gpus = 32});
  for (int32_t kind = 0; kind < 7; ++kind) {
    const LoadMatrix counts = RandomCounts(random, topology, kind);
    const Load load = *Load::FromCounts(counts);
    const TokenSplit flow = *SplitOptimally(load, SolveAlias(load, topology)->placement);
    for (Eigen::Index layer = 0; layer < counts.rows(); ++layer) {
      const double mean = static_cast<double>(counts.row(layer).sum()) / 32;
      const double most = static_cast<double>(CeilOfMean(counts.row(layer).sum(), 32));
      EXPECT_GE(flow.max_gpu_load[static_cast<size_t>(layer)], mean * (1 - 1e-12));
      EXPECT_LE(flow.max_gpu_load[static_cast<size_t>(layer)], most * (1 + 1e-12));
    }
  }
}

TEST(AliasPlacementTest, EveryNodeIsExactlyEvenWithItsOwnGroups) {
  constexpr uint64_t kSeed = 606;
  Random random(kSeed);
  constexpr TopologyOptions kShapes[] = {{.num_layers = 3,
                                          .num_experts = 256,
                                          .num_slots = 288,
                                          .num_gpus = 32,
                                          .num_nodes = 4,
                                          .num_groups = 8},
                                         {.num_layers = 3,
                                          .num_experts = 12,
                                          .num_slots = 24,
                                          .num_gpus = 6,
                                          .num_nodes = 2,
                                          .num_groups = 4}};
  for (int i = 0; i < 60; ++i) {
    const Topology topology = *Topology::Make(kShapes[i % 2]);
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    IndexMatrix node_of_group(topology.num_layers(), topology.num_groups());
    for (Eigen::Index layer = 0; layer < node_of_group.rows(); ++layer) {
      auto row = node_of_group.row(layer);
      for (Eigen::Index group = 0; group < row.size(); ++group) {
        row(group) = static_cast<int32_t>(group % topology.num_nodes());
      }
      std::shuffle(row.begin(), row.end(), random);
    }
    ASSERT_TRUE(AliasApplies(topology, node_of_group));
    const LoadMatrix counts = RandomCounts(random, topology, i % 7);
    const Load load = *Load::FromCounts(counts);
    const auto split = SolveAlias(load, topology, node_of_group);
    ASSERT_TRUE(split.ok()) << split.status();
    ASSERT_NO_FATAL_FAILURE(CheckShares(load, *split));
    ASSERT_NO_FATAL_FAILURE(CheckQuotas(counts, *split, node_of_group));
  }
}

TEST(AliasPlacementTest, NodesMayHoldDifferentNumbersOfGroupsWhileTheyFit) {
  const Topology topology = *Topology::Make({.num_layers = 1,
                                             .num_experts = 9,
                                             .num_slots = 16,
                                             .num_gpus = 4,
                                             .num_nodes = 2,
                                             .num_groups = 3});
  // 4 GPUs of 4 slots: a node has room for 2 * 3 whole experts.
  IndexMatrix node_of_group(1, 3);
  node_of_group << 0, 1, 0;
  EXPECT_FALSE(AliasApplies(topology, node_of_group)) << "node 1 has fewer experts than GPU slots";
  const Topology fewer = *Topology::Make({.num_layers = 1,
                                          .num_experts = 12,
                                          .num_slots = 24,
                                          .num_gpus = 6,
                                          .num_nodes = 2,
                                          .num_groups = 3});
  EXPECT_TRUE(AliasApplies(fewer, node_of_group));
  LoadMatrix counts(1, 12);
  counts << 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 50;
  const auto split = SolveAlias(*Load::FromCounts(counts), fewer, node_of_group);
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_NO_FATAL_FAILURE(CheckQuotas(counts, *split, node_of_group));
  node_of_group << 0, 0, 0;
  EXPECT_FALSE(AliasApplies(fewer, node_of_group)) << "12 experts > 3 * 3, and none on node 1";
}

TEST(AliasPlacementTest, RefusesWhatItCannotMakeEven) {
  const auto applies = [](int32_t experts, int32_t slots, int32_t gpus) {
    return AliasApplies(*Topology::Make(
        {.num_layers = 1, .num_experts = experts, .num_slots = slots, .num_gpus = gpus}));
  };
  EXPECT_TRUE(applies(256, 288, 32));
  EXPECT_FALSE(applies(256, 256, 32));
  EXPECT_FALSE(applies(256, 288, 36)) << "S < E + G";
  EXPECT_FALSE(applies(10, 15, 4)) << "3 slots on one GPU";
  EXPECT_FALSE(applies(3, 8, 2)) << "4 slots a GPU for 3 experts";
  EXPECT_TRUE(applies(8, 15, 4)) << "4 4 4 3 slots";

  const Topology topology = *Topology::Make(
      {.num_layers = 1, .num_experts = 8, .num_slots = 8, .num_gpus = 2, .num_nodes = 2});
  const Load load = *Load::FromCounts(LoadMatrix::Ones(1, 8));
  const GpuSpeeds differ = *GpuSpeeds::Make(2, std::vector{1.0, 0.5}, {});
  EXPECT_FALSE(AliasApplies(*Topology::Make({1, 8, 10, 2, 1, 1}), &differ));
  EXPECT_THAT(SolveAlias(load, topology).status().message(),
              HasSubstr("there are 8 slots, 8 experts, 2 GPUs"));
  EXPECT_THAT(SolveAlias(load, topology, IndexMatrix::Zero(1, 1)).status().message(),
              HasSubstr("8 experts, 2 GPUs, 2 nodes"));
  const Topology good =
      *Topology::Make({.num_layers = 1, .num_experts = 8, .num_slots = 10, .num_gpus = 2});
  EXPECT_THAT(SolveAlias(*Load::FromCounts(LoadMatrix::Ones(1, 7)), good).status().message(),
              HasSubstr("load has 1 layers x 7 experts, the topology has 1 x 8"));
  for (const IndexMatrix& wrong :
       {IndexMatrix::Zero(2, 1).eval(), IndexMatrix::Zero(1, 2).eval(),
        IndexMatrix::Constant(1, 1, 1).eval(), IndexMatrix::Constant(1, 1, -1).eval()}) {
    EXPECT_FALSE(AliasApplies(good, wrong));
  }
}

using testing::Pick;
using testing::Random;

struct Solved {
  std::vector<int32_t> slots;
  std::vector<int64_t> quotas;
};

Solved Solve(const std::vector<int64_t>& loads, const std::vector<int32_t>& slots_of_gpu) {
  std::vector<int32_t> experts(loads.size());
  std::iota(experts.begin(), experts.end(), 0);
  const int32_t slots = std::accumulate(slots_of_gpu.begin(), slots_of_gpu.end(), 0);
  Solved solved{.slots = std::vector<int32_t>(static_cast<size_t>(slots), -1),
                .quotas = std::vector<int64_t>(static_cast<size_t>(slots), -1)};
  AliasSolver().Solve({.experts = experts, .loads = loads, .slots_of_gpu = slots_of_gpu},
                      solved.slots, solved.quotas);
  return solved;
}

// No expert twice on a GPU, at most ceil(mean) tokens on each, none lost.
void ExpectEven(const std::vector<int64_t>& loads, const std::vector<int32_t>& slots_of_gpu,
                const Solved& solved) {
  const int64_t sum = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const auto gpus = static_cast<int64_t>(slots_of_gpu.size());
  std::vector<int64_t> left = loads;
  std::vector<int32_t> replicas(loads.size());
  size_t slot = 0;
  for (const int32_t held : slots_of_gpu) {
    int64_t tokens = 0;
    std::set<int32_t> experts;
    for (const size_t end = slot + static_cast<size_t>(held); slot < end; ++slot) {
      ASSERT_GE(solved.slots[slot], 0) << "slot " << slot;
      ASSERT_GE(solved.quotas[slot], 0) << "slot " << slot;
      const auto expert = static_cast<size_t>(solved.slots[slot]);
      EXPECT_TRUE(experts.insert(solved.slots[slot]).second) << "slot " << slot;
      ++replicas[expert];
      tokens += solved.quotas[slot];
      left[expert] -= solved.quotas[slot];
    }
    EXPECT_LE(tokens, sum / gpus + (sum % gpus != 0 ? 1 : 0)) << "up to slot " << slot;
  }
  EXPECT_EQ(left, std::vector<int64_t>(loads.size()));
  EXPECT_GT(*std::min_element(replicas.begin(), replicas.end()), 0);
  if (sum > 0) return;
  const auto [fewest, most] = std::minmax_element(replicas.begin(), replicas.end());
  EXPECT_LE(*most - *fewest, 1);
}

TEST(AliasDomainTest, GpusWithMoreSlotsThanOthersAreEvenToo) {
  constexpr uint64_t kSeed = 607;
  SCOPED_TRACE(::testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  int32_t uneven = 0;
  for (int i = 0; i < 3000; ++i) {
    std::vector<int32_t> slots_of_gpu(static_cast<size_t>(Pick(random, 1, 8)));
    const int32_t fewest = Pick(random, 2, 6);
    for (int32_t& slots : slots_of_gpu) slots = fewest + Pick(random, 0, 2);
    std::vector<int64_t> loads(static_cast<size_t>(Pick(random, 1, 40)));
    const int32_t most = 1 << Pick(random, 0, 20);
    for (int64_t& tokens : loads) tokens = Pick(random, 0, 3) == 0 ? Pick(random, 0, most) : 0;
    if (!AliasFits(static_cast<int64_t>(loads.size()), slots_of_gpu)) continue;
    const auto [least, largest] = std::minmax_element(slots_of_gpu.begin(), slots_of_gpu.end());
    uneven += *least < *largest ? 1 : 0;
    SCOPED_TRACE(::testing::Message() << "case " << i);
    ASSERT_NO_FATAL_FAILURE(ExpectEven(loads, slots_of_gpu, Solve(loads, slots_of_gpu)));
    if (HasFailure()) return;
  }
  EXPECT_GT(uneven, 500);
}

TEST(AliasDomainTest, SumsNearTheRangeOfInt64AreExact) {
  constexpr uint64_t kSeed = 603;
  Random random(kSeed);
  for (int i = 0; i < 200; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    std::vector<int64_t> loads(16);
    int64_t left = INT64_MAX;
    for (int64_t& tokens : loads) {
      tokens = static_cast<int64_t>(random() % (uint64_t{1} << Pick(random, 1, 62)));
      tokens = std::min(tokens, left);
      left -= tokens;
    }
    loads[static_cast<size_t>(Pick(random, 0, 15))] += left;  // the sum is 2^63 - 1
    const std::vector<int32_t> slots_of_gpu = {5, 5, 5, 5};
    ASSERT_NO_FATAL_FAILURE(ExpectEven(loads, slots_of_gpu, Solve(loads, slots_of_gpu)));
  }
}

TEST(AliasDomainTest, TheGpuWithFewestSlotsDecidesWhetherItFits) {
  EXPECT_TRUE(AliasFits(8, std::vector<int32_t>{3, 3, 3, 3}));
  EXPECT_FALSE(AliasFits(9, std::vector<int32_t>{4, 4, 4, 3}));
  EXPECT_TRUE(AliasFits(4, std::vector<int32_t>{4, 3}));
  EXPECT_FALSE(AliasFits(4, std::vector<int32_t>{5, 4})) << "a GPU would hold an expert twice";
  EXPECT_FALSE(AliasFits(1, std::vector<int32_t>{}));
}

// The slots that no token needs hold experts whose load per replica is high.
TEST(AliasDomainTest, LeftOverSlotsHoldTheHeaviestThatTheGpuLacks) {
  // GPUs {3, 2}, {0}, {1}, each 30; five slots are left. GPU 0 takes 0 (30), GPU 1 takes 1 (30) and
  // 2 (20), GPU 2 takes 0 (15 by then) and 3 (10, as 2 has by then with more replicas).
  const Solved solved = Solve({30, 30, 20, 10}, {3, 3, 3});
  std::vector<std::set<int32_t>> held(3);
  for (size_t slot = 0; slot < 9; ++slot) held[slot / 3].insert(solved.slots[slot]);
  EXPECT_EQ(held, (std::vector<std::set<int32_t>>{{0, 2, 3}, {0, 1, 2}, {0, 1, 3}}));
}

}  // namespace

}  // namespace eplb
