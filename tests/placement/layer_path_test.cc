#include "placement/layer_path.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
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

Topology TopologyOf(int32_t num_experts, int32_t num_slots, int32_t num_gpus) {
  return Topology::Make({.num_layers = 1,
                         .num_experts = num_experts,
                         .num_slots = num_slots,
                         .num_gpus = num_gpus})
      .value();
}

bool IsALayer(const LayerPlacement& layer, const Topology& topology) {
  LayerPlacement first = layer;
  first.layer = LayerId{0};
  return Placement::Static(topology).WithLayers({&first, 1}).ok();
}

// Returns the most slots of one GPU whose expert differs.
int64_t MostChanged(const LayerPlacement& a, const LayerPlacement& b, const Topology& topology) {
  std::vector<int64_t> changed(static_cast<size_t>(topology.num_gpus()));
  for (int32_t slot = 0; slot < topology.num_slots(); ++slot) {
    const auto index = static_cast<size_t>(slot);
    if (a.physical_to_logical[index] == b.physical_to_logical[index]) continue;
    ++changed[static_cast<size_t>(topology.GpuOf(SlotId{slot}).value)];
  }
  return *std::max_element(changed.begin(), changed.end());
}

LayerPlacement Shuffled(const Topology& topology, std::mt19937& random) {
  std::vector<int32_t> slots(static_cast<size_t>(topology.num_slots()));
  std::iota(slots.begin(), slots.end(), 0);
  for (int32_t& expert : slots) {
    if (expert < topology.num_experts()) continue;
    expert = static_cast<int32_t>(random() % static_cast<uint32_t>(topology.num_experts()));
  }
  std::shuffle(slots.begin(), slots.end(), random);
  return LayerOf(slots);
}

TEST(LayerPathTest, AReplicaIsOverwrittenAndARingTurnsByExchanges) {
  const Topology topology = TopologyOf(6, 7, 7);
  // Expert 0 has a replica to spare, so slots 0 and 2 follow each other; 4, 5, 6 turn in a ring.
  const LayerPlacement before = LayerOf({0, 0, 1, 2, 3, 4, 5});
  const LayerPlacement after = LayerOf({1, 0, 2, 2, 4, 5, 3});
  LayerPath path(before, after, topology);
  // One write a GPU: slots 0 and 2, then the ring as a whole, for each of its slots is written
  // once.
  EXPECT_EQ(path.Take(1), after);
  EXPECT_TRUE(path.done());
}

TEST(LayerPathTest, APartHasRoomForSoManyWritesOfAGpu) {
  const Topology topology = TopologyOf(6, 6, 1);
  const LayerPlacement before = LayerOf({0, 1, 2, 3, 4, 5});
  const LayerPlacement after = LayerOf({1, 2, 3, 4, 5, 0});
  LayerPath path(before, after, topology);
  EXPECT_EQ(path.Take(3).physical_to_logical, (std::vector<int32_t>{1, 2, 0, 3, 4, 5}));
  EXPECT_EQ(path.Take(1).physical_to_logical, (std::vector<int32_t>{1, 2, 3, 0, 4, 5}));
  EXPECT_EQ(path.Take(9), after);
}

TEST(LayerPathTest, ReplicasThatStayComeFirstInTheirLaterOrder) {
  const Topology topology = TopologyOf(2, 4, 1);
  const LayerPlacement before = LayerOf({0, 0, 1, 1});
  LayerPlacement after = LayerOf({1, 0, 0, 1});
  after.replica_rank = {1, 1, 0, 0};  // slot 2 is expert 0's primary, slot 3 that of expert 1
  LayerPath path(before, after, topology);
  // Slot 0 is written first: expert 1 is in slots 0 and 3 to stay then, and in slot 2 to leave.
  const LayerPlacement part = path.Take(1);
  EXPECT_EQ(part.physical_to_logical, (std::vector<int32_t>{1, 0, 1, 1}));
  EXPECT_EQ(part.replica_rank, (std::vector<int32_t>{1, 0, 2, 0}));
  EXPECT_EQ(path.Take(1), after);
}

TEST(LayerPathTest, AnotherPrimaryTakesARowOfItsGpu) {
  const Topology topology = TopologyOf(2, 4, 2);
  const LayerPlacement before = LayerOf({0, 1, 0, 1});
  LayerPlacement after = before;
  after.replica_rank = {1, 1, 0, 0};  // both primaries go to GPU 1
  LayerPath path(before, after, topology);
  EXPECT_EQ(path.Take(1).replica_rank, (std::vector<int32_t>{1, 0, 0, 1}));
  EXPECT_FALSE(path.done());
  EXPECT_EQ(path.Take(1), after);
  EXPECT_TRUE(path.done());
}

TEST(LayerPathTest, AnUnusableGpuIsOnePart) {
  const Topology topology = TopologyOf(2, 3, 3);
  LayerPath path(LayerOf({0, 1, -1}), LayerOf({1, 0, -1}), topology);
  EXPECT_EQ(path.Take(1), LayerOf({1, 0, -1}));
  EXPECT_TRUE(path.done());
}

TEST(LayerPathTest, EveryPartOfARandomPathIsALayerWithinItsRows) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto num_experts = static_cast<int32_t>(2 + random() % 8);
    const auto num_slots = num_experts + static_cast<int32_t>(random() % 5);
    const auto gpus = 1 + static_cast<int32_t>(random() % static_cast<uint32_t>(num_experts));
    const Topology topology = TopologyOf(num_experts, num_slots, gpus);
    const auto rows = static_cast<int64_t>(1 + random() % 3);
    LayerPlacement now = Shuffled(topology, random);
    const LayerPlacement after = Shuffled(topology, random);
    LayerPath path(now, after, topology);
    for (int part = 0; !path.done(); ++part) {
      ASSERT_LE(part, num_slots + num_experts) << "round " << round;
      const LayerPlacement next = path.Take(rows);
      EXPECT_TRUE(IsALayer(next, topology)) << "round " << round;
      // Two where one GPU exchanges two of its own slots and has no room for both.
      EXPECT_LE(MostChanged(now, next, topology), std::max<int64_t>(rows, 2));
      now = next;
    }
    EXPECT_EQ(now.physical_to_logical, after.physical_to_logical);
    EXPECT_EQ(now, after);
  }
}

TEST(LayerPathTest, AWideLayerNeedsFewPartsMoreThanItsRows) {
  std::mt19937 random(7);
  struct Shape {
    int32_t num_experts, num_slots, num_gpus;
    int64_t rows;
    int most_parts;  // at best: slots of a GPU / rows
  };
  for (const Shape& shape : {Shape{256, 256, 8, 4, 12}, Shape{256, 256, 64, 2, 6},
                             Shape{384, 384, 64, 3, 6}, Shape{4096, 4352, 8, 32, 24}}) {
    const Topology topology = TopologyOf(shape.num_experts, shape.num_slots, shape.num_gpus);
    LayerPath path(Shuffled(topology, random), Shuffled(topology, random), topology);
    int parts = 0;
    for (; !path.done(); ++parts) (void)path.Take(shape.rows);
    EXPECT_LE(parts, shape.most_parts) << shape.num_experts << " on " << shape.num_gpus;
  }
}

}  // namespace
}  // namespace eplb
