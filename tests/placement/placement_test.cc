#include "placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Topology OneLayer() {
  return *Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 6, .num_gpus = 2});
}

IndexMatrix Row(const std::vector<int32_t>& values) {
  return Eigen::Map<const IndexMatrix>(values.data(), 1, static_cast<Eigen::Index>(values.size()));
}

std::string Refusal(const absl::StatusOr<Placement>& placement) {
  return std::string(placement.status().message());
}

TEST(PlacementTest, LowestSlotIsThePrimary) {
  const auto placement = Placement::FromSlots(OneLayer(), Row({2, 0, 1, 0, 2, 0}));
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_THAT(placement->ReplicasOf(LayerId{0}, ExpertId{0}), ElementsAre(1, 3, 5));
  EXPECT_EQ(placement->PrimaryOf(LayerId{0}, ExpertId{2}), SlotId{0});
  EXPECT_EQ(placement->ReplicaCount(LayerId{0}, ExpertId{1}), 1);
  EXPECT_EQ(placement->max_replicas(), 3);
  const IndexMatrix map = placement->logical_to_physical_map();
  EXPECT_THAT(std::vector<int32_t>(map.row(0).begin(), map.row(0).end()),
              ElementsAre(1, 3, 5, 2, -1, -1, 0, 4, -1));
}

TEST(PlacementTest, GivenRanksOrderTheReplicas) {
  const auto placement =
      Placement::FromSlotsAndRanks(OneLayer(), Row({2, 0, 1, 0, 2, 0}), Row({1, 2, 0, 0, 0, 1}));
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_THAT(placement->ReplicasOf(LayerId{0}, ExpertId{0}), ElementsAre(3, 5, 1));
  EXPECT_EQ(placement->PrimaryOf(LayerId{0}, ExpertId{2}), SlotId{4});
}

TEST(PlacementTest, RefusalNamesLayerAndSlot) {
  EXPECT_THAT(Refusal(Placement::FromSlots(OneLayer(), Row({0, 1, 3, 2, 0, 0}))),
              HasSubstr("layer 0 slot 2 holds expert 3, expected 0..2"));
  EXPECT_THAT(Refusal(Placement::FromSlots(OneLayer(), Row({0, -1, 1, 2, 0, 0}))),
              HasSubstr("layer 0 slot 1 holds expert -1"));
  EXPECT_THAT(Refusal(Placement::FromSlots(OneLayer(), Row({0, 0, 0, 2, 0, 0}))),
              HasSubstr("expert 1 is in no slot"));
  EXPECT_THAT(Refusal(Placement::FromSlots(OneLayer(), Row({0, 1, 2}))),
              HasSubstr("1 x 3, expected 1 layers x 6 slots"));
}

TEST(PlacementTest, AnUnusableGpuHoldsMinusOneInAllItsSlotsAndLayers) {
  const Topology topology =
      *Topology::Make({.num_layers = 2, .num_experts = 2, .num_slots = 6, .num_gpus = 3});
  IndexMatrix slots(2, 6);
  slots << 0, 1, -1, -1, 1, 0,  //
      1, 0, -1, -1, 0, 1;
  const auto placement = Placement::FromSlots(topology, slots);
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_TRUE(placement->Holds(GpuId{0}));
  EXPECT_FALSE(placement->Holds(GpuId{1}));
  EXPECT_EQ(placement->ExpertIn(LayerId{0}, SlotId{3}), ExpertId{-1});
  EXPECT_THAT(placement->ReplicasOf(LayerId{1}, ExpertId{1}), ElementsAre(0, 5));
  slots(1, 3) = 0;
  EXPECT_THAT(Placement::FromSlots(topology, slots).status().message(),
              HasSubstr("layer 0 slot 2 holds expert -1"));
}

TEST(PlacementTest, RefusesRanksThatAreNoPermutation) {
  const IndexMatrix slots = Row({2, 0, 1, 0, 2, 0});
  EXPECT_THAT(Refusal(Placement::FromSlotsAndRanks(OneLayer(), slots, Row({1, 2, 0, 2, 0, 1}))),
              HasSubstr("slots 1 and 3 both have replica rank 2 of expert 0"));
  EXPECT_THAT(Refusal(Placement::FromSlotsAndRanks(OneLayer(), slots, Row({1, 2, 1, 0, 0, 1}))),
              HasSubstr("layer 0 slot 2 has replica rank 1, expert 1 has 1 replicas"));
}

TEST(PlacementTest, RefusesAReplicaMapOutOfProportion) {
  constexpr int32_t kExperts = 20000;
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = kExperts, .num_slots = 2 * kExperts});
  IndexMatrix slots = Placement::Static(topology).physical_to_logical_map();
  slots.rightCols(kExperts) = 7;
  EXPECT_THAT(Refusal(Placement::FromSlots(topology, slots)),
              HasSubstr("an expert has 20001 replicas: the map of 1 layers x 20000 experts x 20001 "
                        "replicas has more than 200000000 entries"));
}

TEST(PlacementTest, StaticWrapsSpareSlotsAround) {
  const Placement placement = Placement::Static(
      *Topology::Make({.num_layers = 2, .num_experts = 3, .num_slots = 8, .num_gpus = 2}));
  EXPECT_THAT(placement.Layer(LayerId{1}).physical_to_logical, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
}

TEST(PlacementTest, LayersReadBackRebuildThePlacement) {
  constexpr uint64_t kSeed = 30;
  Random random(kSeed);
  for (int i = 0; i < 300; ++i) {
    const Topology topology = RandomTopology(random);
    const Placement placement = RandomPlacement(random, topology);
    std::vector<LayerPlacement> layers;
    layers.reserve(static_cast<size_t>(topology.num_layers()));
    for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
      layers.push_back(placement.Layer(LayerId{layer}));
    }
    ASSERT_EQ(*Placement::Static(topology).WithLayers(layers), placement)
        << "seed " << kSeed << " case " << i;
  }
}

TEST(PlacementTest, WithLayersRefusesALayerTwiceOrOutside) {
  const Placement placement = Placement::Static(OneLayer());
  LayerPlacement layer = placement.Layer(LayerId{0});
  const std::vector<LayerPlacement> twice{layer, layer};
  EXPECT_THAT(Refusal(placement.WithLayers(twice)), HasSubstr("layer 0 is given twice"));
  layer.layer = LayerId{1};
  EXPECT_THAT(Refusal(placement.WithLayers({&layer, 1})), HasSubstr("layer 1 is outside 0..0"));
  layer.layer = LayerId{0};
  layer.replica_rank.pop_back();
  EXPECT_THAT(Refusal(placement.WithLayers({&layer, 1})), HasSubstr("5 replica ranks, expected 6"));
}

}  // namespace
}  // namespace eplb
