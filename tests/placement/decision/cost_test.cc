#include "placement/decision/cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace eplb {
namespace {

constexpr int64_t kWeights = 88'080'384;  // DeepSeek-V3: 44.04 M parameters in bf16

TopologyOptions Shape(int32_t layers, int32_t experts, int32_t slots, int32_t gpus, int32_t nodes) {
  return {.num_layers = layers,
          .num_experts = experts,
          .num_slots = slots,
          .num_gpus = gpus,
          .num_nodes = nodes};
}

Placement Slots(const TopologyOptions& shape, const std::vector<int32_t>& row) {
  IndexMatrix slots(shape.num_layers, shape.num_slots);
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (int32_t slot = 0; slot < shape.num_slots; ++slot) slots(layer, slot) = row[slot];
  }
  return Placement::FromSlots(Topology::Make(shape).value(), slots).value();
}

Costs Priced(int64_t weight_bytes) {
  Costs costs{.token_seconds = 1e-6};
  costs.expert.weight_bytes = weight_bytes;
  return costs;
}

// 58 layers, 32 GPUs on nodes of their own, 8 experts and one replica each: GPU g holds its own
// experts and a replica of the next GPU's first. Weights go one way round, gradients the other, so
// every link carries both: 58 * (88 MB + 176 MB) / 50 GB/s = 306 ms.
TEST(CostTest, OneReplicaPerGpuAndLayerOfDeepSeekV3IsAbout300MillisecondsAStep) {
  constexpr int32_t kGpus = 32;
  std::vector<int32_t> row;
  for (int32_t gpu = 0; gpu < kGpus; ++gpu) {
    for (int32_t i = 0; i < 8; ++i) row.push_back(8 * gpu + i);
    row.push_back(8 * ((gpu + 1) % kGpus));
  }
  const TopologyOptions shape = Shape(58, 256, 288, kGpus, kGpus);
  IndexMatrix slots(58, 288);
  IndexMatrix ranks = IndexMatrix::Zero(58, 288);
  for (int32_t layer = 0; layer < 58; ++layer) {
    for (int32_t slot = 0; slot < 288; ++slot) {
      slots(layer, slot) = row[slot];
      ranks(layer, slot) = slot % 9 == 8 ? 1 : 0;
    }
  }
  const Placement ring =
      Placement::FromSlotsAndRanks(Topology::Make(shape).value(), slots, ranks).value();
  Costs costs = Priced(kWeights);
  costs.replica_weight_bytes = kWeights;
  costs.replica_gradient_bytes = 2 * kWeights;
  EXPECT_NEAR(ReplicaSecondsPerStep(ring, costs), 0.306, 0.002);
  EXPECT_EQ(
      ReplicaSecondsPerStep(Placement::Static(Topology::Make(Shape(2, 8, 8, 4, 1)).value()), costs),
      0);
}

TEST(CostTest, AReplicaBesideItsPrimarySendsNothing) {
  Costs costs = Priced(0);
  costs.replica_weight_bytes = 1000;
  EXPECT_EQ(ReplicaSecondsPerStep(Slots(Shape(1, 3, 4, 2, 1), {0, 0, 1, 2}), costs), 0);
  EXPECT_GT(ReplicaSecondsPerStep(Slots(Shape(1, 3, 4, 2, 1), {0, 1, 2, 0}), costs), 0);
}

TEST(CostTest, TheBusiestLinkDecidesAndTheStallIsAdded) {
  // Expert 0 and 1 of node 0 change places with each other, 2 and 3 stay: one transfer each way.
  const TopologyOptions shape = Shape(3, 4, 4, 4, 2);
  Costs costs = Priced(1'000'000);
  costs.intra_bytes_per_s = 1e9;
  costs.inter_bytes_per_s = 1e8;
  costs.stall_seconds = 0.5;
  const Placement before = Slots(shape, {0, 1, 2, 3});
  const MigrationCost inside = PriceMigration(before, Slots(shape, {1, 0, 2, 3}), costs).value();
  EXPECT_EQ(inside.transfers, 6);
  EXPECT_EQ(inside.bytes, 6'000'000);
  EXPECT_NEAR(inside.seconds, 3 * 1e6 / 1e9 + 0.5, 1e-12);
  const MigrationCost across = PriceMigration(before, Slots(shape, {2, 1, 0, 3}), costs).value();
  EXPECT_NEAR(across.seconds, 3 * 1e6 / 1e8 + 0.5, 1e-12);
}

TEST(CostTest, NothingMovesForNothing) {
  Costs costs = Priced(1000);
  costs.stall_seconds = 1;
  const Placement placement = Slots(Shape(1, 4, 4, 2, 1), {0, 1, 2, 3});
  const MigrationCost cost = PriceMigration(placement, placement, costs).value();
  EXPECT_EQ(cost.transfers, 0);
  EXPECT_EQ(cost.seconds, 0);
}

TEST(CostTest, StateThatStaysWithThePrimaryIsCountedWithIt) {
  Costs costs = Priced(10);
  costs.expert.state_bytes = 100;
  costs.expert.state_residency = StateResidency::kWithPrimary;
  const TopologyOptions shape = Shape(1, 2, 3, 3, 1);
  // The replica of expert 0 goes from GPU 2 to nowhere, expert 1 gets one there: weights only.
  EXPECT_EQ(PriceMigration(Slots(shape, {0, 1, 0}), Slots(shape, {0, 1, 1}), costs)->bytes, 10);
  // The primary of expert 0 leaves GPU 0: weights and state go to GPU 1.
  EXPECT_EQ(PriceMigration(Slots(shape, {0, 1, 1}), Slots(shape, {1, 0, 1}), costs)->bytes, 220);
}

TEST(CostTest, BytesThatSumAboveInt64AreRefusedAndSecondsStayFinite) {
  const TopologyOptions shape = Shape(4, 2, 2, 2, 1);
  const Placement before = Slots(shape, {0, 1});
  const Placement after = Slots(shape, {1, 0});
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(PriceMigration(before, after, Priced(most)).status().code(),
            absl::StatusCode::kInvalidArgument);
  Costs slow = Priced(most / 8);
  slow.intra_bytes_per_s = std::numeric_limits<double>::denorm_min();
  EXPECT_TRUE(std::isfinite(PriceMigration(before, after, slow)->seconds));
}

TEST(CostTest, UnusableNumbersAreRefusedByName) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(CheckCosts({}).ok());
  for (const Costs& costs :
       {Costs{.token_seconds = -1}, Costs{.token_seconds = infinity}, Costs{.intra_bytes_per_s = 0},
        Costs{.inter_bytes_per_s = std::nan("")}, Costs{.stall_seconds = -1},
        Costs{.replica_weight_bytes = -1}, Costs{.horizon_steps = -1}}) {
    EXPECT_EQ(CheckCosts(costs).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(CheckCosts({.stall_seconds = -1}).message(),
            "costs: stall_seconds is -1, expected a finite number >= 0");
}

TEST(CostTest, PricesNeedTheTimeOfATokenAndSomethingThatCosts) {
  EXPECT_FALSE(Costs{}.priced());
  EXPECT_FALSE(Costs{.token_seconds = 1e-7}.priced());
  EXPECT_FALSE(Costs{.stall_seconds = 1}.priced());
  EXPECT_TRUE((Costs{.token_seconds = 1e-7, .stall_seconds = 1}.priced()));
  EXPECT_TRUE(Priced(1).priced());
}

}  // namespace
}  // namespace eplb
