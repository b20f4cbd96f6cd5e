#include "placement/layer_path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace eplb {
namespace {

LayerPlacement LayerOf(const std::vector<int32_t>& slots) {
  LayerPlacement layer{LayerId{3}, slots, {}};
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    layer.replica_rank.push_back(static_cast<int32_t>(
        std::count(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(slot), slots[slot])));
  }
  return layer;
}

// Each slot a GPU of its own.
absl::Status CheckOne(const LayerPlacement& layer, int32_t num_experts) {
  const auto num_slots = static_cast<int32_t>(layer.physical_to_logical.size());
  const Topology topology = Topology::Make({.num_layers = 1,
                                            .num_experts = num_experts,
                                            .num_slots = num_slots,
                                            .num_gpus = num_slots})
                                .value();
  LayerPlacement first = layer;
  first.layer = LayerId{0};
  return Placement::Static(topology).WithLayers({&first, 1}).status();
}

TEST(LayerPathTest, AReplicaIsOverwrittenBySlotsAndACycleByExchanges) {
  // Expert 0 has a replica to spare, so slots 1, 0 and 2 follow each other; 4, 5, 6 turn in a ring.
  const LayerPlacement before = LayerOf({0, 0, 1, 2, 3, 4, 5});
  const LayerPlacement after = LayerOf({1, 0, 2, 2, 4, 5, 3});
  const LayerPath path(before, after, 6);
  ASSERT_EQ(path.num_steps(), 4);
  EXPECT_EQ(path.SlotsOf(0), (std::vector<int32_t>{0}));
  EXPECT_EQ(path.SlotsOf(1), (std::vector<int32_t>{2}));
  EXPECT_EQ(path.SlotsOf(2), (std::vector<int32_t>{4, 5}));
  EXPECT_EQ(path.SlotsOf(3), (std::vector<int32_t>{5, 6}));
  EXPECT_EQ(path.At(0), before);
  EXPECT_EQ(path.At(1).physical_to_logical, (std::vector<int32_t>{1, 0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(path.At(3).physical_to_logical, (std::vector<int32_t>{1, 0, 2, 2, 4, 3, 5}));
  EXPECT_EQ(path.At(4), after);
}

TEST(LayerPathTest, ReplicasThatStayComeFirstInTheirLaterOrder) {
  LayerPlacement before = LayerOf({0, 0, 1, 1});
  LayerPlacement after = LayerOf({1, 0, 0, 1});
  after.replica_rank = {1, 1, 0, 0};  // slot 2 is expert 0's primary, slot 3 that of expert 1
  const LayerPath path(before, after, 2);
  ASSERT_EQ(path.num_steps(), 2);
  // Slot 0 is written first: expert 1 then is in slots 0 and 3 to stay and in slot 2 to leave.
  EXPECT_EQ(path.At(1).physical_to_logical, (std::vector<int32_t>{1, 0, 1, 1}));
  EXPECT_EQ(path.At(1).replica_rank, (std::vector<int32_t>{1, 0, 2, 0}));
}

TEST(LayerPathTest, AnOrderOfReplicasAndAnUnusableGpuAreOneStep) {
  const LayerPlacement before = LayerOf({0, 1, 1});
  LayerPlacement after = before;
  after.replica_rank = {0, 1, 0};
  EXPECT_EQ(LayerPath(before, after, 2).num_steps(), 1);
  EXPECT_EQ(LayerPath(before, after, 2).At(1), after);
  EXPECT_EQ(LayerPath(LayerOf({0, 1, -1}), LayerOf({1, 0, -1}), 2).num_steps(), 1);
}

TEST(LayerPathTest, EveryPartOfARandomPathIsALayerAndTheWholeIsTheTarget) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto num_experts = static_cast<int32_t>(1 + random() % 8);
    const auto num_slots = static_cast<size_t>(num_experts) + random() % 5;
    const auto draw = [&] {
      std::vector<int32_t> slots;
      for (size_t slot = 0; slot < num_slots; ++slot) {
        const auto spare = static_cast<int32_t>(random() % static_cast<uint32_t>(num_experts));
        slots.push_back(slot < static_cast<size_t>(num_experts) ? static_cast<int32_t>(slot)
                                                                : spare);
      }
      std::shuffle(slots.begin(), slots.end(), random);
      return LayerOf(slots);
    };
    const LayerPlacement before = draw();
    const LayerPlacement after = draw();
    const LayerPath path(before, after, num_experts);
    EXPECT_LE(path.num_steps(), num_slots);
    for (size_t steps = 0; steps <= path.num_steps(); ++steps) {
      EXPECT_TRUE(CheckOne(path.At(steps), num_experts).ok()) << "round " << round;
    }
    for (size_t step = 0; step < path.num_steps(); ++step) {
      EXPECT_LE(path.SlotsOf(step).size(), 2);
    }
    EXPECT_EQ(path.At(path.num_steps()), after);
  }
}

}  // namespace
}  // namespace eplb
