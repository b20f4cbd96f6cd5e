#include "placement/echo/echo_locality.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/placement/echo/echo_check.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

using testing::FaultOfEcho;
using testing::HomesInOrder;
using testing::Pick;
using testing::Random;

// Tokens that stay on the GPU of their rank: at homes and in spare slots.
int64_t TokensKept(const Placement& homes, const std::vector<int64_t>& sources,
                   const EchoPlan& plan) {
  const auto experts = static_cast<size_t>(homes.topology().num_experts());
  int64_t kept = 0;
  for (size_t spare = 0; spare < plan.source.size(); ++spare) {
    if (plan.source[spare] < 0) continue;
    const ExpertId expert = homes.ExpertIn(plan.layer, SlotId{plan.source[spare]});
    const size_t gpu = spare / static_cast<size_t>(plan.spare_slots);
    kept += std::min(plan.spare_tokens[spare],
                     sources[gpu * experts + static_cast<size_t>(expert.value)]);
  }
  return kept;
}

TEST(EchoLocalityTest, CopiesGoWhereTheirTokensAre) {
  // Both copies of expert 0 and 1 fit on GPU 2 and on GPU 3.
  const Placement homes = HomesInOrder(4, 4);
  const std::vector<int64_t> counts{20, 20, 0, 0};
  EchoPlanner planner = *EchoPlanner::Make(homes, {.spare_slots = 1, .tolerance = 0});
  EchoPlan plan;
  ASSERT_TRUE(planner.Plan(LayerId{0}, counts, plan).ok());
  ASSERT_EQ(plan.source, (std::vector<int32_t>{-1, -1, 1, 0}));
  std::vector<int64_t> sources{0, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 0, 20, 0, 0};
  const absl::StatusOr<int64_t> kept = KeepAtSource(planner, sources, plan);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(*kept, 20);
  EXPECT_EQ(plan.source, (std::vector<int32_t>{-1, -1, 0, 1}));
  EXPECT_EQ(FaultOfEcho(homes, {.spare_slots = 1}, counts, plan), "");
  // An echo whose sources do not fit is refused, and left as it is.
  const EchoPlan before = plan;
  sources[0] = 1;
  EXPECT_EQ(KeepAtSource(planner, sources, plan).status().message(),
            "source 2 has 20 tokens of expert 0, expected 0 or more and all to sum to the plan's");
  sources[0] = 0;
  sources[8] = 19;
  EXPECT_EQ(KeepAtSource(planner, sources, plan).status().message(),
            "the sources have 1 tokens of expert 0 fewer than the plan");
  sources.pop_back();
  EXPECT_EQ(KeepAtSource(planner, sources, plan).status().message(),
            "tokens of 15 sources and experts, expected 4 x 4");
  EXPECT_EQ(plan, before);
}

TEST(EchoLocalityTest, RandomExchangesKeepMoreAndNothingElseChanges) {
  Random random(3);
  int64_t total = 0;
  for (int instance = 0; instance < 500; ++instance) {
    SCOPED_TRACE(instance);
    const Topology topology = testing::RandomTopology(random);
    const Placement homes = testing::RandomPlacement(random, topology);
    const EchoOptions options{
        .spare_slots = Pick(random, 1, 3), .tolerance = 0.05, .num_domains = 1};
    const auto experts = static_cast<size_t>(topology.num_experts());
    std::vector<int64_t> sources(static_cast<size_t>(topology.num_gpus()) * experts);
    std::vector<int64_t> counts(experts);
    for (size_t i = 0; i < sources.size(); ++i) {
      sources[i] = Pick(random, 0, 3) == 0 ? Pick(random, 0, 400) : 0;
      counts[i % experts] += sources[i];
    }
    EchoPlanner planner = *EchoPlanner::Make(homes, options);
    EchoPlan plan;
    ASSERT_TRUE(planner.Plan(LayerId{0}, counts, plan).ok());
    const EchoPlan before = plan;
    const absl::StatusOr<int64_t> kept = KeepAtSource(planner, sources, plan);
    ASSERT_TRUE(kept.ok()) << kept.status();
    ASSERT_EQ(FaultOfEcho(homes, options, counts, plan), "");
    EXPECT_EQ(TokensKept(homes, sources, plan), TokensKept(homes, sources, before) + *kept);
    EXPECT_LE(plan.peak.peak, before.peak.peak);
    EXPECT_EQ(plan.peak.num_replicas, before.peak.num_replicas);
    EXPECT_EQ(plan.home_tokens, before.home_tokens);
    total += *kept;
  }
  EXPECT_GT(total, 0);
}

}  // namespace
}  // namespace eplb
