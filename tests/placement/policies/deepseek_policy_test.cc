#include "placement/policies/deepseek_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/placement/policy_contract.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Policy> MakeStable() { return MakeDeepseekPolicy({}); }
std::unique_ptr<Policy> MakeCompatGlobal() {
  return MakeDeepseekPolicy({.tie_break = TieBreak::kCompat, .hierarchy = Hierarchy::kNone});
}
INSTANTIATE_TEST_SUITE_P(DeepseekStable, PolicyContractTest, ::testing::Values(&MakeStable));
INSTANTIATE_TEST_SUITE_P(DeepseekCompatGlobal, PolicyContractTest,
                         ::testing::Values(&MakeCompatGlobal));

FloatMatrix OneLayer(const std::vector<float>& cells) {
  return Eigen::Map<const FloatMatrix>(cells.data(), 1, static_cast<Eigen::Index>(cells.size()));
}

std::vector<int> Flat(const IndexMatrix& matrix) {
  return {matrix.data(), matrix.data() + matrix.size()};
}

// The message of a refusal; empty, and a failure, if it is none.
std::string Refusal(Eigen::Index layers, Eigen::Index experts, const DeepseekShape& shape) {
  const FloatMatrix weight = FloatMatrix::Ones(layers, experts);
  const auto maps = RebalanceExperts(weight, shape, TieBreak::kStable);
  EXPECT_EQ(maps.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(maps.status().message());
}

TEST(RebalanceExpertsTest, ARefusalNamesTheNumbers) {
  EXPECT_EQ(Refusal(1, 16, {30, 1, 1, 4}), "30 slots are not a multiple of 4 GPUs, next: 32 slots");
  EXPECT_EQ(Refusal(1, 16, {8, 1, 1, 4}), "8 slots cannot hold 16 experts");
  EXPECT_EQ(Refusal(1, 16, {24, 4, 4, 6}), "6 GPUs are not a multiple of 4 nodes");
  EXPECT_EQ(Refusal(1, 15, {24, 4, 4, 8}), "15 experts are not a multiple of 4 expert groups");
  EXPECT_EQ(Refusal(300, 1, {1 << 20, 1, 1, 1}),
            "300 layers x 1048576 slots; at most 268435456 cells are accepted");
}

TEST(RebalanceExpertsTest, NumbersBelowOneAreRefused) {
  EXPECT_THAT(Refusal(0, 4, {4, 1, 1, 1}), HasSubstr("0 layers"));
  EXPECT_THAT(Refusal(1, 0, {4, 1, 1, 1}), HasSubstr("0 experts"));
  EXPECT_THAT(Refusal(1, 4, {0, 1, 1, 1}), HasSubstr("0 slots"));
  EXPECT_THAT(Refusal(1, 4, {4, 0, 1, 1}), HasSubstr("0 expert groups"));
  EXPECT_THAT(Refusal(1, 4, {4, -1, 1, 1}), HasSubstr("-1 expert groups"));
  EXPECT_THAT(Refusal(1, 4, {4, 1, 0, 1}), HasSubstr("0 nodes"));
  EXPECT_THAT(Refusal(1, 4, {4, 1, -2, 1}), HasSubstr("-2 nodes"));
  EXPECT_THAT(Refusal(1, 4, {4, 1, 1, 0}), HasSubstr("0 GPUs"));
}

TEST(RebalanceExpertsTest, GroupsThatDoNotFillNodesAreIgnoredTogetherWithTheNodes) {
  const FloatMatrix weight = OneLayer({9, 1, 4, 4, 7, 2, 8});  // E % K and G % N are not 0 either
  const auto fallback = RebalanceExperts(weight, {9, 3, 2, 3}, TieBreak::kStable);
  const auto global = RebalanceExperts(weight, {9, 1, 1, 3}, TieBreak::kStable);
  ASSERT_TRUE(fallback.ok()) << fallback.status();
  EXPECT_EQ(Flat(fallback->physical_to_logical), Flat(global->physical_to_logical));
}

TEST(RebalanceExpertsTest, AWindowIntoAWiderMatrixIsReadByItsStride) {
  FloatMatrix wide = FloatMatrix::Constant(2, 6, 1000);
  wide.leftCols(4) << 1, 9, 1, 1, 1, 1, 9, 1;
  const auto maps = RebalanceExperts(wide.leftCols(4), {5, 1, 1, 1}, TieBreak::kStable);
  ASSERT_TRUE(maps.ok()) << maps.status();
  EXPECT_THAT(Flat(maps->counts), ElementsAre(1, 2, 1, 1, 1, 1, 2, 1));
}

TEST(DeepseekPolicyTest, CountsGoToFloatDirectlyAndNotThroughDouble) {
  // 2^60 + 2^36 + 1 is just above the middle of two floats; as a double it is the middle and would
  // round down to 2^60, a tie that the first expert wins.
  LoadMatrix counts(1, 2);
  constexpr int64_t kFloat = int64_t{1} << 60;
  counts << kFloat, kFloat + (int64_t{1} << 36) + 1;
  const Load load = *Load::FromCounts(counts);
  const Topology topology = *Topology::Make({.num_layers = 1, .num_experts = 2, .num_slots = 3});
  const auto placement = MakeDeepseekPolicy({})->Solve({.load = load, .topology = topology});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_THAT(Flat(placement->logical_replica_count()), ElementsAre(1, 2));
}

TEST(DeepseekPolicyTest, GlobalLooksAtNeitherGroupsNorNodes) {
  LoadMatrix counts(1, 8);
  counts << 900, 1, 1, 1, 1, 1, 1, 1;
  const Load load = *Load::FromCounts(counts);
  const TopologyOptions shape = {1, 8, 12, 4, 2, 2};
  TopologyOptions flat = shape;
  flat.num_nodes = flat.num_groups = 1;
  const Topology nodes = *Topology::Make(shape);
  const Topology no_nodes = *Topology::Make(flat);
  const auto global =
      MakeDeepseekPolicy({.hierarchy = Hierarchy::kNone})->Solve({.load = load, .topology = nodes});
  const auto hierarchical = MakeDeepseekPolicy({})->Solve({.load = load, .topology = nodes});
  const auto expected = MakeDeepseekPolicy({})->Solve({.load = load, .topology = no_nodes});
  EXPECT_EQ(Flat(global->physical_to_logical_map()), Flat(expected->physical_to_logical_map()));
  EXPECT_EQ(global->topology(), nodes);
  EXPECT_THAT(Flat(global->logical_replica_count()), ElementsAre(5, 1, 1, 1, 1, 1, 1, 1));
  // Inside its own node the hot expert finds two spare slots, the other node spends its two on
  // equals, the first first.
  EXPECT_THAT(Flat(hierarchical->logical_replica_count()), ElementsAre(3, 1, 1, 1, 2, 2, 1, 1));
}

TEST(DeepseekPolicyTest, TheFirstReplicaCreatedIsThePrimary) {
  const Load load = *Load::FromCounts(LoadMatrix::Constant(1, 24, 6));
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 24, .num_slots = 32, .num_gpus = 8});
  const auto maps =
      RebalanceExperts(*load.ToFloat(), {.num_slots = 32, .num_gpus = 8}, TieBreak::kCompat);
  const auto placement = MakeDeepseekPolicy({.tie_break = TieBreak::kCompat})
                             ->Solve({.load = load, .topology = topology});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(Flat(placement->replica_rank()), Flat(maps->replica_rank));
  EXPECT_NE(
      Flat(placement->replica_rank()),
      Flat(Placement::FromSlots(topology, placement->physical_to_logical_map())->replica_rank()));
}

TEST(DeepseekPolicyTest, AnEstimateAboveFloatsRangeIsRefused) {
  const Load load = *Load::FromEstimates(RealMatrix::Constant(1, 4, 1e39));
  const Topology topology = *Topology::Make({.num_layers = 1, .num_experts = 4, .num_slots = 4});
  const auto placement = MakeDeepseekPolicy({})->Solve({.load = load, .topology = topology});
  EXPECT_EQ(placement.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(placement.status().message()), HasSubstr("float32"));
}

}  // namespace
}  // namespace eplb
