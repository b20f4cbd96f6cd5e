#include "server/history/traffic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace eplb {
namespace {

// 2 GPUs on 2 nodes with 2 slots each.
constexpr TopologyOptions kTwoNodes = {
    .num_layers = 1, .num_experts = 4, .num_slots = 4, .num_gpus = 2, .num_nodes = 2};
constexpr int64_t kReceivedBytes = 4096;

Placement PlacementOf(const std::vector<int32_t>& experts,
                      const TopologyOptions& shape = kTwoNodes) {
  IndexMatrix slots(1, shape.num_slots);
  std::copy(experts.begin(), experts.end(), slots.data());
  return *Placement::FromSlots(*Topology::Make(shape), slots);
}

v1::Plan PlanThatReceived(std::optional<uint64_t> bytes) {
  v1::Plan plan;
  plan.set_plan(7);
  plan.set_base_version(3);
  plan.set_last_version(5);
  if (bytes) plan.set_received_bytes(*bytes);
  return plan;
}

TEST(TrafficTest, ItNamesTheDecisionAndItsFlows) {
  const Traffic traffic = *TrafficBetween(PlacementOf({0, 1, 2, 3}), PlacementOf({0, 3, 2, 1}),
                                          PlanThatReceived(kReceivedBytes));
  EXPECT_EQ(traffic.plan, 7);
  EXPECT_EQ(traffic.base_version, 3);
  EXPECT_EQ(traffic.last_version, 5);
  EXPECT_EQ(traffic.num_gpus, 2);
  EXPECT_EQ(traffic.num_nodes, 2);
  EXPECT_EQ(traffic.received_bytes, kReceivedBytes);
  EXPECT_EQ(traffic.flows.transfers, 2);
  EXPECT_EQ(traffic.flows.cross_node_transfers, 2);
}

TEST(TrafficTest, BytesThatNobodyMeasuredAreNotKnown) {
  const Placement placement = PlacementOf({0, 1, 2, 3});
  EXPECT_FALSE(TrafficBetween(placement, placement, PlanThatReceived(std::nullopt))
                   ->received_bytes.has_value());
}

TEST(TrafficTest, PlacementsOfDifferentShapesAreRefused) {
  TopologyOptions one_node = kTwoNodes;
  one_node.num_nodes = 1;
  EXPECT_EQ(TrafficBetween(PlacementOf({0, 1, 2, 3}), PlacementOf({0, 1, 2, 3}, one_node),
                           PlanThatReceived(kReceivedBytes))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb
