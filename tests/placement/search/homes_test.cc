#include "placement/search/homes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

// Two nodes of two GPUs with two slots each; expert groups {0,1}, {2,3}.
Topology Shape() {
  return *Topology::Make({.num_layers = 1,
                          .num_experts = 4,
                          .num_slots = 8,
                          .num_gpus = 4,
                          .num_nodes = 2,
                          .num_groups = 2});
}

TEST(HomesTest, AHomeHoldsEveryExpertOfTheGroup) {
  const std::vector<int32_t> slots = {2, 3, 2, 3, 0, 1, 0, 1};
  EXPECT_THAT(HomesOf(Shape(), Hierarchy::kStrict, slots), Optional(ElementsAre(1, 0)));
  EXPECT_THAT(HomesOf(Shape(), Hierarchy::kSoft, slots), Optional(ElementsAre(1, 0)));
}

TEST(HomesTest, AReplicaElsewhereIsSoftButNotStrict) {
  const std::vector<int32_t> slots = {2, 3, 2, 0, 0, 1, 0, 1};
  EXPECT_EQ(HomesOf(Shape(), Hierarchy::kStrict, slots), std::nullopt);
  EXPECT_THAT(HomesOf(Shape(), Hierarchy::kSoft, slots), Optional(ElementsAre(1, 0)));
}

TEST(HomesTest, AGroupThatNoNodeHoldsWholeHasNoHome) {
  const std::vector<int32_t> slots = {0, 2, 0, 2, 1, 3, 1, 3};
  EXPECT_EQ(HomesOf(Shape(), Hierarchy::kSoft, slots), std::nullopt);
}

TEST(HomesTest, NodesAreHomeToEquallyManyGroupsWhenStrict) {
  const std::vector<int32_t> slots = {0, 1, 2, 3, -1, -1, -1, -1};
  EXPECT_EQ(HomesOf(Shape(), Hierarchy::kStrict, slots), std::nullopt);
  EXPECT_THAT(HomesOf(Shape(), Hierarchy::kSoft, slots), Optional(ElementsAre(0, 0)));
}

TEST(HomesTest, PrimariesMoveToTheLowestSlotAtHome) {
  IndexMatrix slots(1, 8);
  slots << 2, 3, 2, 0, 0, 1, 0, 1;  // expert 0 is at home on node 1, its lowest slot is not
  const Placement placement = *Placement::FromSlots(Shape(), slots);
  ASSERT_EQ(placement.PrimaryOf(LayerId{0}, ExpertId{0}), SlotId{3});
  const auto at_home = WithPrimariesAtHome(placement, Hierarchy::kSoft);
  ASSERT_TRUE(at_home.ok()) << at_home.status();
  EXPECT_THAT(at_home->ReplicasOf(LayerId{0}, ExpertId{0}), ElementsAre(4, 3, 6));
  EXPECT_THAT(at_home->ReplicasOf(LayerId{0}, ExpertId{2}), ElementsAre(0, 2));
}

}  // namespace
}  // namespace eplb
