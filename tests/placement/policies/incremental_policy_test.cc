#include "placement/policies/incremental_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "placement/policies/balanced_policy.h"
#include "tests/placement/policies/drift.h"
#include "tests/placement/policy_contract.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Policy> MakeIt() { return MakeIncrementalPolicy({}); }
std::unique_ptr<Policy> MakeFlatIncremental() {
  return MakeIncrementalPolicy({.hierarchy = Hierarchy::kNone, .effort = Effort::kFast});
}

INSTANTIATE_TEST_SUITE_P(Incremental, PolicyContractTest, ::testing::Values(&MakeIt));
INSTANTIATE_TEST_SUITE_P(IncrementalFlat, PolicyContractTest,
                         ::testing::Values(&MakeFlatIncremental));

constexpr uint64_t kIncrementalPolicySeed = 20;

const Topology& Shape() {
  static const Topology topology = *Topology::Make(
      {.num_layers = 4, .num_experts = 64, .num_slots = 72, .num_gpus = 8, .num_nodes = 1});
  return topology;
}

Drift MakeDrift(double sigma) { return {4, 64, 1, sigma, kIncrementalPolicySeed}; }

Placement Balanced(const Load& load) {
  return *MakeBalancedPolicy({})->Solve({.load = load, .topology = Shape()});
}

TEST(IncrementalPolicyTest, FollowsADriftWithFewTransfers) {
  Drift drift = MakeDrift(0.05);
  Placement placement = Balanced(drift.Next());
  double balancedness = 0;
  int64_t transfers = 0;
  constexpr int kWindows = 10;
  for (int window = 0; window < kWindows; ++window) {
    const Load load = drift.Next();
    const auto next = MakeIt()->Solve({.load = load, .topology = Shape(), .previous = &placement});
    ASSERT_TRUE(next.ok()) << next.status();
    const MoveSummary moves = *SummariseMoves(placement, *next);
    EXPECT_LE(moves.max_per_gpu, 2);
    transfers += moves.transfers;
    balancedness += *Evaluate(load, *next)->mean_balancedness;
    placement = *next;
  }
  EXPECT_GE(balancedness / kWindows, 0.98) << "seed " << kIncrementalPolicySeed;
  EXPECT_LE(static_cast<double>(transfers) / kWindows, 0.06 * 4 * 72)
      << "seed " << kIncrementalPolicySeed;
}

TEST(IncrementalPolicyTest, AWideLayerThatWasNeverBalancedIsPlannedByBalanced) {
  const Topology wide = *Topology::Make(
      {.num_layers = 1, .num_experts = 512, .num_slots = 1024, .num_gpus = 256, .num_nodes = 1});
  const Load load = Drift{1, 512, 1, 0.1, kIncrementalPolicySeed}.Next();
  const Placement anew = *MakeBalancedPolicy({})->Solve({.load = load, .topology = wide});
  const Placement start = Placement::Static(wide);
  const Placement next = *MakeIt()->Solve({.load = load, .topology = wide, .previous = &start});
  ASSERT_LT(*Evaluate(load, start)->mean_balancedness, 0.5) << "very far off";
  EXPECT_EQ(Evaluate(load, next)->peak_load, Evaluate(load, anew)->peak_load);
}

TEST(IncrementalPolicyTest, WithoutMovesOnlyTheExpertsThatALossTookGetASlot) {
  const Topology shape = *Topology::Make(
      {.num_layers = 4, .num_experts = 64, .num_slots = 80, .num_gpus = 8, .num_nodes = 1});
  const Load load = MakeDrift(0.5).Next();
  const Placement before = *MakeBalancedPolicy({})->Solve({.load = load, .topology = shape});
  const auto policy = MakeIncrementalPolicy({.max_moves_per_gpu = 0});
  for (int32_t gpu = 0; gpu < 8; ++gpu) {
    const GpuSpeeds speeds = *GpuSpeeds::Make(8, {}, std::vector<int32_t>{gpu});
    const Placement after =
        *policy->Solve({.load = load, .topology = shape, .previous = &before, .speeds = &speeds});
    const IndexMatrix& held = after.physical_to_logical_map();
    int64_t lost = 0;
    for (int32_t layer = 0; layer < 4; ++layer) {
      for (int32_t expert = 0; expert < 64; ++expert) {
        lost += std::ranges::all_of(
            before.ReplicasOf(LayerId{layer}, ExpertId{expert}),
            [&](int32_t slot) { return shape.GpuOf(SlotId{slot}) == GpuId{gpu}; });
      }
    }
    EXPECT_EQ((held >= 0 && held != before.physical_to_logical_map()).count(), lost);
    EXPECT_GT(*Evaluate(load, after, {.speeds = &speeds})->mean_balancedness, 0.75);
  }
}

// If experts drift by a fifth a window, the placement of one window is nearly as good in the
// next as one that is made from scratch.
TEST(IncrementalPolicyTest, TheNextWindowLosesLittleAgainstPlanningFromScratch) {
  Drift drift = MakeDrift(0.2);
  Load load = drift.Next();
  Placement placement = Balanced(load);
  double balancedness = 0;
  double from_scratch = 0;
  int64_t transfers = 0;
  constexpr int kWindows = 16;
  for (int window = 0; window < kWindows; ++window) {
    load = drift.Next();
    const auto next = MakeIt()->Solve({.load = load, .topology = Shape(), .previous = &placement});
    ASSERT_TRUE(next.ok()) << next.status();
    transfers += SummariseMoves(placement, *next)->transfers;
    placement = *next;
    const Placement scratch = Balanced(load);
    Drift later = drift;
    const Load coming = later.Next();
    balancedness += *Evaluate(coming, placement)->mean_balancedness / kWindows;
    from_scratch += *Evaluate(coming, scratch)->mean_balancedness / kWindows;
  }
  EXPECT_GE(balancedness, from_scratch - 0.012) << "seed " << kIncrementalPolicySeed;
  EXPECT_LE(static_cast<double>(transfers) / kWindows, 0.1 * 4 * 72)
      << "seed " << kIncrementalPolicySeed;
}

// Shares of tokens, or what an average of windows leaves, say nothing about sampling noise.
TEST(IncrementalPolicyTest, EstimatesAreFollowedWhateverTheirScale) {
  const Load counts = MakeDrift(0).Next();
  const Load shares = *Load::FromEstimates(counts.ToDouble() / counts.ToDouble().sum());
  const Placement before = Placement::Static(Shape());
  const auto next = MakeIt()->Solve({.load = shares, .topology = Shape(), .previous = &before});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_GE(Evaluate(shares, *next)->mean_balancedness,
            *Evaluate(shares, before)->mean_balancedness + 0.2);
}

TEST(IncrementalPolicyTest, SamplingNoiseMovesNothing) {
  Drift constant = MakeDrift(0);
  Placement placement = Balanced(constant.Next());
  for (int window = 0; window < 20; ++window) {
    const Load load = constant.Next();
    const auto next = MakeIt()->Solve({.load = load, .topology = Shape(), .previous = &placement});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(*next, placement) << "seed " << kIncrementalPolicySeed << " window " << window;
  }
}

TEST(IncrementalPolicyTest, TheBudgetPerGpuHolds) {
  Drift drift = MakeDrift(0.5);
  for (const int32_t budget : {0, 1, 2, 5}) {
    const Load load = drift.Next();
    const Placement before = Placement::Static(Shape());
    const auto next = MakeIncrementalPolicy({.max_moves_per_gpu = budget})
                          ->Solve({.load = load, .topology = Shape(), .previous = &before});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_LE(SummariseMoves(before, *next)->max_per_gpu, budget);
    EXPECT_GE(Evaluate(load, *next)->mean_balancedness, Evaluate(load, before)->mean_balancedness);
  }
}

TEST(IncrementalPolicyTest, NeverWorseThanTheIncumbentOnTheRecentWindows) {
  Drift drift = MakeDrift(0.4);
  Placement placement = Balanced(drift.Next());
  for (int round = 0; round < 10; ++round) {
    const std::vector<Load> recent = {drift.Next(), drift.Next(), drift.Next()};
    const auto next = MakeIt()->Solve(
        {.load = recent.back(), .topology = Shape(), .previous = &placement, .recent = recent});
    ASSERT_TRUE(next.ok()) << next.status();
    for (Eigen::Index layer = 0; layer < 4; ++layer) {
      double before = 0;
      double after = 0;
      for (const Load& window : recent) {
        const double mean = window.ToDouble().row(layer).sum();
        const auto l = static_cast<size_t>(layer);
        before += Evaluate(window, placement)->max_gpu_load[l] / mean;
        after += Evaluate(window, *next)->max_gpu_load[l] / mean;
      }
      EXPECT_LE(after, before * (1 + 1e-9))
          << "seed " << kIncrementalPolicySeed << " layer " << layer;
    }
    placement = *next;
  }
}

TEST(IncrementalPolicyTest, AnExpertThatStaysOnAGpuKeepsItsSlot) {
  Drift drift = MakeDrift(0.3);
  const Placement before = Balanced(drift.Next());
  const Load load = drift.Next();
  const auto next = MakeIt()->Solve({.load = load, .topology = Shape(), .previous = &before});
  ASSERT_TRUE(next.ok()) << next.status();
  const MoveSummary moves = *SummariseMoves(before, *next);
  EXPECT_GT(moves.transfers, 0);
  EXPECT_EQ(moves.slots_changed, moves.transfers);
}

const Topology& TwoNodes() {
  static const Topology topology = *Topology::Make({.num_layers = 1,
                                                    .num_experts = 16,
                                                    .num_slots = 32,
                                                    .num_gpus = 8,
                                                    .num_nodes = 2,
                                                    .num_groups = 4});
  return topology;
}

// Every expert group has a node that holds all its experts, and under `strict` no other node does.
void ExpectNodeAffinity(const Placement& placement, Hierarchy hierarchy) {
  const Topology& topology = placement.topology();
  for (int32_t group = 0; group < 4; ++group) {
    int32_t affinities = 0;
    int32_t nodes = 0;
    for (int32_t node = 0; node < 2; ++node) {
      int32_t held = 0;
      for (int32_t expert = 4 * group; expert < 4 * group + 4; ++expert) {
        const auto replicas = placement.ReplicasOf(LayerId{0}, ExpertId{expert});
        held += std::any_of(replicas.begin(), replicas.end(), [&](int32_t slot) {
          return topology.NodeOf(topology.GpuOf(SlotId{slot})).value == node;
        });
      }
      affinities += held == 4 ? 1 : 0;
      nodes += held > 0 ? 1 : 0;
    }
    EXPECT_GE(affinities, 1) << "group " << group;
    if (hierarchy == Hierarchy::kStrict) {
      EXPECT_EQ(nodes, 1) << "group " << group;
    }
  }
}

// Also where a GPU goes and comes back.
TEST(IncrementalPolicyTest, TheHierarchyIsKept) {
  std::mt19937_64 random(kIncrementalPolicySeed);
  for (const Hierarchy hierarchy : {Hierarchy::kStrict, Hierarchy::kSoft}) {
    const auto draw = [&] {
      LoadMatrix counts(1, 16);
      for (int64_t& cell : counts.reshaped()) cell = Pick(random, 1, 5000);
      return *Load::FromCounts(counts);
    };
    const auto policy = MakeIncrementalPolicy({.hierarchy = hierarchy});
    Placement placement = *MakeBalancedPolicy({.hierarchy = hierarchy})
                               ->Solve({.load = draw(), .topology = TwoNodes()});
    for (int window = 0; window < 40; ++window) {
      SCOPED_TRACE(::testing::Message()
                   << "seed " << kIncrementalPolicySeed << " window " << window);
      const Load load = draw();
      const int32_t unusable[] = {Pick(random, 0, 7)};
      const GpuSpeeds speeds =
          window % 3 == 0 ? *GpuSpeeds::Make(8, {}, unusable) : GpuSpeeds::Equal(8);
      const auto next = policy->Solve(
          {.load = load, .topology = TwoNodes(), .previous = &placement, .speeds = &speeds});
      ASSERT_TRUE(next.ok()) << next.status();
      ExpectNodeAffinity(*next, hierarchy);
      if (window % 3 == 0) {
        EXPECT_FALSE(next->Holds(GpuId{unusable[0]}));
      }
      placement = *next;
    }
  }
}

TEST(IncrementalPolicyTest, OtherShapesAreRefused) {
  const Load load = MakeDrift(0).Next();
  const Placement other = Placement::Static(
      *Topology::Make({.num_layers = 4, .num_experts = 64, .num_slots = 80, .num_gpus = 8}));
  EXPECT_THAT(
      MakeIt()->Solve({.load = load, .topology = Shape(), .previous = &other}).status().message(),
      HasSubstr("the previous placement has 80 slots, the next placement has 72"));
  const std::vector<Load> recent = {*Load::FromCounts(LoadMatrix::Ones(4, 63))};
  EXPECT_THAT(
      MakeIt()->Solve({.load = load, .topology = Shape(), .recent = recent}).status().message(),
      HasSubstr("recent window has 4 layers x 63 experts"));
}

}  // namespace
}  // namespace eplb
