#include "placement/without_eplb.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "placement/placement.h"
#include "placement/topology.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;

Load LoadOf(std::initializer_list<int64_t> tokens) {
  LoadMatrix counts(1, static_cast<Eigen::Index>(tokens.size()));
  std::copy(tokens.begin(), tokens.end(), counts.data());
  return *Load::FromCounts(counts);
}

TEST(WithoutEplbTest, FirstGpusHoldOneExpertMore) {
  EXPECT_THAT(ExpertRangesWithoutEplb(8, 4), ElementsAre(0, 2, 4, 6, 8));
  EXPECT_THAT(ExpertRangesWithoutEplb(7, 4), ElementsAre(0, 2, 4, 6, 7));
  EXPECT_THAT(ExpertRangesWithoutEplb(2, 4), ElementsAre(0, 1, 2, 2, 2));
}

TEST(WithoutEplbTest, GpusBeyondTheExpertsHaveNoLoad) {
  const Evaluation result = EvaluateWithoutEplb(LoadOf({30, 10}), 4);
  EXPECT_THAT(result.gpu_loads.row(0), ElementsAre(30, 10, 0, 0));
  EXPECT_EQ(result.peak_load, 30);
  EXPECT_DOUBLE_EQ(*result.balancedness[0], 10.0 / 30);
}

TEST(WithoutEplbTest, EqualsTheStaticLayoutOfAJobWithoutRedundantSlots) {
  const Load load = LoadOf({5, 90, 3, 7, 11});
  const Topology topology =
      *Topology::Make({.num_layers = 1, .num_experts = 5, .num_slots = 5, .num_gpus = 2});
  const auto still = Evaluate(load, Placement::Static(topology));
  ASSERT_TRUE(still.ok()) << still.status();
  const Evaluation without = EvaluateWithoutEplb(load, 2);
  EXPECT_THAT(without.gpu_loads.row(0), ElementsAre(98, 18));
  EXPECT_EQ(without.peak_load, still->peak_load);
}

TEST(WithoutEplbTest, ASlowGpuIsFullerAndAnUnusableOneHoldsNothing) {
  const GpuSpeeds speeds =
      *GpuSpeeds::Make(3, std::vector<double>{1, 1, 0.5}, std::vector<int32_t>{1});
  const Evaluation result = EvaluateWithoutEplb(LoadOf({4, 2, 6, 0}), 3, &speeds);
  EXPECT_THAT(result.gpu_loads.row(0), ElementsAre(6, 0, 12));
  EXPECT_EQ(result.peak_load, 12);
}

}  // namespace
}  // namespace eplb
