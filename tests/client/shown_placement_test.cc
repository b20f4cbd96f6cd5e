// The views and tables of the running placement.
#include "client/shown_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace eplb {

namespace {

using ::testing::ElementsAre;

Placement Make(const std::vector<int32_t>& slots) {
  const Topology topology =
      Topology::Make({.num_layers = 1, .num_experts = 3, .num_slots = 5, .num_gpus = 2}).value();
  IndexMatrix map(1, 5);
  for (Eigen::Index i = 0; i < 5; ++i) map(0, i) = slots[static_cast<size_t>(i)];
  return Placement::FromSlots(topology, map).value();
}

TEST(PlacementTablesTest, ViewShowsThePlacementPaddedToTheMostReplicas) {
  const PlacementTables tables(Running(4, Make({0, 1, 2, 0, 1})), GpuId{1});
  const PlacementView& view = tables.view();
  EXPECT_EQ(view.version, 4);
  EXPECT_EQ(view.digest, DigestOf(Make({0, 1, 2, 0, 1})).Hex());
  EXPECT_EQ(view.first_local_slot, 3);
  EXPECT_EQ(view.num_local_slots, 2);
  EXPECT_EQ(view.max_replicas, 3);
  EXPECT_THAT(view.physical_to_logical_map, ElementsAre(0, 1, 2, 0, 1));
  EXPECT_THAT(view.logical_replica_count, ElementsAre(2, 2, 1));
  EXPECT_THAT(view.logical_to_physical_map, ElementsAre(0, 3, -1, 1, 4, -1, 2, -1, -1));
}

TEST(PlacementTablesTest, UpdateKeepsAddressesAndLeavesNothingOld) {
  PlacementTables tables(Running(0, Make({0, 0, 0, 1, 2})), GpuId{0});
  const int32_t* slots = tables.view().physical_to_logical_map.data();
  const int32_t* replicas = tables.view().logical_to_physical_map.data();
  const PlacementView* view = &tables.view();
  tables.Update(Running(1, Make({2, 2, 0, 1, 2})));
  EXPECT_EQ(view->physical_to_logical_map.data(), slots);
  EXPECT_EQ(view->logical_to_physical_map.data(), replicas);
  EXPECT_EQ(view->version, 1);
  EXPECT_THAT(view->logical_to_physical_map, ElementsAre(2, -1, -1, 3, -1, -1, 0, 1, 4));
}

TEST(ShownPlacementTest, RefusesASplitCallBesideOneOfAnotherThread) {
  ShownPlacement shown(Running(0, Make({0, 1, 2, 0, 1})), GpuId{0});
  ASSERT_TRUE(shown.MakeRouteTables({}).ok());
  ASSERT_TRUE(shown.PrepareSplits({.max_tokens = 1, .top_k = 1}, /*takes_sums=*/false).ok());
  const auto call_of_another_thread = [&shown] {
    std::string message;
    std::thread([&] {
      message = std::string(shown.BeginSplitCall("route_from").status().message());
    }).join();
    return message;
  };
  {
    const auto call = shown.BeginSplitCall("count_for");
    ASSERT_TRUE(call.ok()) << call.status();
    EXPECT_EQ(call_of_another_thread(),
              "route_from was called while another thread was inside count_for, route_from or "
              "prepare_split");
  }
  EXPECT_EQ(call_of_another_thread(), "");
}

}  // namespace

}  // namespace eplb
