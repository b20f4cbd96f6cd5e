#include "placement/policies/incremental_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "placement/evaluate.h"
#include "placement/migration_plan.h"
#include "placement/policies/balanced_policy.h"
#include "tests/placement/policy_contract.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using testing::PolicyContractTest;
using testing::Random;

std::unique_ptr<Policy> MakeIt() { return MakeIncrementalPolicy({}); }
std::unique_ptr<Policy> MakeFlat() {
  return MakeIncrementalPolicy({.hierarchy = Hierarchy::kNone, .effort = Effort::kFast});
}

INSTANTIATE_TEST_SUITE_P(Incremental, PolicyContractTest, ::testing::Values(&MakeIt));
INSTANTIATE_TEST_SUITE_P(IncrementalFlat, PolicyContractTest, ::testing::Values(&MakeFlat));

constexpr uint64_t kSeed = 20;

const Topology& Shape() {
  static const Topology topology = *Topology::Make(
      {.num_layers = 4, .num_experts = 64, .num_slots = 72, .num_gpus = 8, .num_nodes = 1});
  return topology;
}

// Weights that drift by a factor of about 1 + sigma a window, drawn as counts.
class Drift {
 public:
  explicit Drift(double sigma) : sigma_(sigma), weight_(RealMatrix::Zero(4, 64)) {
    for (double& cell : weight_.reshaped()) cell = Normal();
  }
  Load Next() {
    LoadMatrix counts(4, 64);
    for (Eigen::Index i = 0; i < counts.size(); ++i) {
      const double mean = 4000 * std::exp(weight_.data()[i]);
      counts.data()[i] = static_cast<int64_t>(std::max(0.0, mean + std::sqrt(mean) * Normal()));
      weight_.data()[i] += sigma_ * Normal();
    }
    return *Load::FromCounts(counts);
  }

 private:
  // Sum of twelve uniforms: the same on every machine, unlike std::normal_distribution.
  double Normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random_() >> 11) * 0x1p-53;
    return sum;
  }

  Random random_{kSeed};
  double sigma_;
  RealMatrix weight_;
};

Placement Balanced(const Load& load) {
  return *MakeBalancedPolicy({})->Solve({.load = load, .topology = Shape()});
}

TEST(IncrementalPolicyTest, FollowsADriftWithFewTransfers) {
  Drift drift(0.05);
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
    balancedness += Evaluate(load, *next)->mean_balancedness;
    placement = *next;
  }
  EXPECT_GE(balancedness / kWindows, 0.98) << "seed " << kSeed;
  EXPECT_LE(static_cast<double>(transfers) / kWindows, 0.06 * 4 * 72) << "seed " << kSeed;
}

TEST(IncrementalPolicyTest, SamplingNoiseMovesNothing) {
  Drift constant(0);
  Placement placement = Balanced(constant.Next());
  for (int window = 0; window < 20; ++window) {
    const Load load = constant.Next();
    const auto next = MakeIt()->Solve({.load = load, .topology = Shape(), .previous = &placement});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(*next, placement) << "seed " << kSeed << " window " << window;
  }
}

TEST(IncrementalPolicyTest, TheBudgetPerGpuHolds) {
  Drift drift(0.5);
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
  Drift drift(0.4);
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
      EXPECT_LE(after, before * (1 + 1e-9)) << "seed " << kSeed << " layer " << layer;
    }
    placement = *next;
  }
}

TEST(IncrementalPolicyTest, AnExpertThatStaysOnAGpuKeepsItsSlot) {
  Drift drift(0.3);
  const Placement before = Balanced(drift.Next());
  const Load load = drift.Next();
  const auto next = MakeIt()->Solve({.load = load, .topology = Shape(), .previous = &before});
  ASSERT_TRUE(next.ok()) << next.status();
  const MoveSummary moves = *SummariseMoves(before, *next);
  EXPECT_GT(moves.transfers, 0);
  EXPECT_EQ(moves.slots_changed, moves.transfers);
}

TEST(IncrementalPolicyTest, WhatAnUnusableGpuHeldIsPutElsewhere) {
  Drift drift(0);
  const Load load = drift.Next();
  const Placement before = Balanced(load);
  const int32_t unusable[] = {5};
  // One GPU less leaves 63 slots for 64 experts, so the frame here has 80 slots.
  const Topology topology =
      *Topology::Make({.num_layers = 4, .num_experts = 64, .num_slots = 80, .num_gpus = 8});
  const GpuSpeeds speeds = *GpuSpeeds::Make(8, {}, unusable);
  const Placement incumbent = Placement::Static(topology);
  const auto next = MakeIt()->Solve(
      {.load = load, .topology = topology, .previous = &incumbent, .speeds = &speeds});
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(next->Holds(GpuId{5}));
  const auto back = MakeIt()->Solve({.load = load, .topology = topology, .previous = &*next});
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->Holds(GpuId{5}));
}

TEST(IncrementalPolicyTest, StrictHierarchyIsKept) {
  const Topology topology = *Topology::Make({.num_layers = 1,
                                             .num_experts = 16,
                                             .num_slots = 24,
                                             .num_gpus = 8,
                                             .num_nodes = 2,
                                             .num_groups = 4});
  Random random(kSeed);
  const auto draw = [&] {
    LoadMatrix counts(1, 16);
    for (int64_t& cell : counts.reshaped()) cell = testing::Pick(random, 1, 5000);
    return *Load::FromCounts(counts);
  };
  Placement placement = *MakeBalancedPolicy({})->Solve({.load = draw(), .topology = topology});
  for (int window = 0; window < 20; ++window) {
    const Load load = draw();
    const auto next = MakeIt()->Solve({.load = load, .topology = topology, .previous = &placement});
    ASSERT_TRUE(next.ok()) << next.status();
    for (int32_t expert = 0; expert < 16; ++expert) {
      // The home of an expert's group is where the group's first expert is.
      const SlotId first = next->PrimaryOf(LayerId{0}, ExpertId{expert / 4 * 4});
      for (const int32_t slot : next->ReplicasOf(LayerId{0}, ExpertId{expert})) {
        EXPECT_EQ(topology.NodeOf(topology.GpuOf(SlotId{slot})),
                  topology.NodeOf(topology.GpuOf(first)));
      }
    }
    placement = *next;
  }
}

TEST(IncrementalPolicyTest, OtherShapesAreRefused) {
  const Load load = Drift(0).Next();
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
