#include "placement/policies/auto_policy.h"

#include <gtest/gtest.h>

#include "placement/policies/registry.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

TEST(AutoPolicyTest, APlanWithoutAHistoryIsThatOfTheOtherPolicies) {
  Random random(11);
  const Topology topology =
      Topology::Make({.num_layers = 2, .num_experts = 16, .num_slots = 20, .num_gpus = 4}).value();
  LoadMatrix counts(2, 16);
  for (int64_t& cell : counts.reshaped()) cell = Pick(random, 0, 5000);
  const Load load = Load::FromCounts(counts).value();
  const Placement previous = Placement::Static(topology);
  const auto solve = [&](const char* policy, const Placement* from) {
    return MakePolicy(policy, {})
        .value()
        ->Solve({.load = load, .topology = topology, .previous = from})
        .value();
  };
  EXPECT_EQ(solve("auto", nullptr), solve("balanced", nullptr));
  EXPECT_EQ(solve("auto", &previous), solve("incremental", &previous));
  EXPECT_TRUE(TraitsOf("auto").chooses);
  EXPECT_FALSE(TraitsOf("auto").needs_previous);
}

}  // namespace
}  // namespace eplb
