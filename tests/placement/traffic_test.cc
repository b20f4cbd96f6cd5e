#include "placement/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "placement/migration_plan.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// 4 GPUs on 2 nodes with 2 slots each.
constexpr TopologyOptions kTwoNodes = {
    .num_layers = 1, .num_experts = 8, .num_slots = 8, .num_gpus = 4, .num_nodes = 2};

Placement PlacementOf(const std::vector<int32_t>& experts, TopologyOptions shape = kTwoNodes) {
  IndexMatrix slots(shape.num_layers, shape.num_slots);
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    for (int32_t slot = 0; slot < shape.num_slots; ++slot) {
      slots(layer, slot) = experts[static_cast<size_t>(slot)];
    }
  }
  return *Placement::FromSlots(*Topology::Make(shape), slots);
}

std::vector<std::tuple<int32_t, int32_t, int64_t>> Tuples(const std::vector<Flow>& flows) {
  std::vector<std::tuple<int32_t, int32_t, int64_t>> tuples;
  tuples.reserve(flows.size());
  for (const Flow& flow : flows) tuples.emplace_back(flow.from, flow.to, flow.transfers);
  return tuples;
}

TEST(FlowsTest, FlowsAreBetweenTheGpusThatHeldAndGotAnExpert) {
  // Experts 1 and 2 change places inside of node 0, experts 3 and 7 between the nodes.
  const Flows flows =
      *FlowsBetween(PlacementOf({0, 1, 2, 3, 4, 5, 6, 7}), PlacementOf({0, 2, 1, 7, 4, 5, 6, 3}));
  EXPECT_EQ(flows.transfers, 4);
  EXPECT_EQ(flows.cross_node_transfers, 2);
  EXPECT_THAT(Tuples(flows.gpus), ElementsAre(std::tuple(0, 1, 1), std::tuple(1, 0, 1),
                                              std::tuple(1, 3, 1), std::tuple(3, 1, 1)));
  EXPECT_THAT(Tuples(flows.nodes),
              ElementsAre(std::tuple(0, 0, 2), std::tuple(0, 1, 1), std::tuple(1, 0, 1)));
}

TEST(FlowsTest, ItCountsWhatTheDecisionCounted) {
  TopologyOptions shape = kTwoNodes;
  shape.num_layers = 3;
  shape.num_experts = 4;
  const Placement before = PlacementOf({0, 1, 2, 3, 0, 1, 2, 3}, shape);
  const Placement after = PlacementOf({0, 3, 3, 2, 1, 0, 2, 1}, shape);
  const Flows flows = *FlowsBetween(before, after);
  const MoveSummary summary = *SummariseMoves(before, after);
  EXPECT_EQ(flows.transfers, summary.transfers);
  EXPECT_EQ(flows.cross_node_transfers, summary.cross_node);
  int64_t on_gpus = 0;
  int64_t crossing = 0;
  for (const Flow& flow : flows.gpus) on_gpus += flow.transfers;
  for (const Flow& flow : flows.nodes) crossing += flow.from == flow.to ? 0 : flow.transfers;
  EXPECT_EQ(on_gpus, flows.transfers);
  EXPECT_EQ(crossing, flows.cross_node_transfers);
}

TEST(FlowsTest, ACopyInsideOfAGpuIsNoTraffic) {
  const Flows flows =
      *FlowsBetween(PlacementOf({0, 1, 2, 3, 4, 5, 6, 7}), PlacementOf({1, 0, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(flows.transfers, 0);
  EXPECT_THAT(flows.gpus, IsEmpty());
  EXPECT_THAT(flows.nodes, IsEmpty());
}

TEST(FlowsTest, PlacementsOfDifferentShapesAreRefused) {
  TopologyOptions one_node = kTwoNodes;
  one_node.num_nodes = 1;
  EXPECT_EQ(FlowsBetween(PlacementOf({0, 1, 2, 3, 4, 5, 6, 7}),
                         PlacementOf({0, 1, 2, 3, 4, 5, 6, 7}, one_node))
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb
