// Equal input gives equal bytes whatever built the engine: each preset, with its compiler and
// optimisation, runs this against the same digests. A digest changes here only where a change of an
// algorithm is meant to change plans; the failure prints the new one.
#include <gtest/gtest.h>

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "placement/digest.h"
#include "placement/policies/registry.h"
#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

const Topology& SameBytesShape() {
  static const Topology topology = *Topology::Make({.num_layers = 3,
                                                    .num_experts = 64,
                                                    .num_slots = 80,
                                                    .num_gpus = 8,
                                                    .num_nodes = 2,
                                                    .num_groups = 8});
  return topology;
}

// Counts over three decades. No function of the C library, so that only the engine is compared.
Load Skewed(uint64_t seed) {
  Random random(seed);
  LoadMatrix counts(3, 64);
  for (int64_t& cell : counts.reshaped()) {
    cell = Pick(random, 1, 100);
    cell *= Pick(random, 1, 100);  // one draw a statement: their order is fixed
    cell *= Pick(random, 1, 10);
  }
  return *Load::FromCounts(counts);
}

struct ExpectedBytes {
  const char* policy;
  Hierarchy hierarchy;
  Effort effort;
  std::string digest;  // the first 16 digits
};

void PrintTo(const ExpectedBytes& expected, std::ostream* out) {
  *out << expected.policy << ", hierarchy " << static_cast<int>(expected.hierarchy) << ", effort "
       << static_cast<int>(expected.effort);
}

class SameBytesTest : public ::testing::TestWithParam<ExpectedBytes> {};

TEST_P(SameBytesTest, TheDigestIsTheSameFromEveryBuild) {
  const ExpectedBytes& expected = GetParam();
  const auto policy =
      *MakePolicy(expected.policy, {.hierarchy = expected.hierarchy, .effort = expected.effort});
  const Load first = Skewed(1);
  const Placement start = *MakePolicy("balanced", {.hierarchy = expected.hierarchy})
                               .value()
                               ->Solve({.load = first, .topology = SameBytesShape()});
  const Load next = Skewed(2);
  const auto placement =
      policy->Solve({.load = next, .topology = SameBytesShape(), .previous = &start});
  ASSERT_TRUE(placement.ok()) << placement.status();
  EXPECT_EQ(DigestOf(*placement).Hex().substr(0, 16), expected.digest);
}

TEST(SameBytesOfScenariosTest, TheDigestIsTheSameFromEveryBuild) {
  const std::vector<Scenario> scenarios = {{Skewed(1)}, {Skewed(2), 2}, {Skewed(3)}};
  const Load mean = MeanOfScenarios(scenarios);
  for (const auto& [hierarchy, digest] : {std::pair(Hierarchy::kNone, "3c4c6c63e4b84a87"),
                                          std::pair(Hierarchy::kStrict, "4911d6eee462a0a3"),
                                          std::pair(Hierarchy::kSoft, "7d70691686169f03")}) {
    const auto placement =
        (*MakePolicy("balanced", {.hierarchy = hierarchy, .effort = Effort::kThorough}))
            ->Solve({.load = mean, .topology = SameBytesShape(), .scenarios = scenarios});
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_EQ(DigestOf(*placement).Hex().substr(0, 16), digest) << static_cast<int>(hierarchy);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SameBytesTest,
    ::testing::Values(
        ExpectedBytes{"deepseek", Hierarchy::kNone, Effort::kDefault, "0b04c5aa1261cbc0"},
        ExpectedBytes{"deepseek", Hierarchy::kStrict, Effort::kDefault, "b3e2d66039763099"},
        ExpectedBytes{"balanced", Hierarchy::kNone, Effort::kFast, "86118af74a4b38ac"},
        ExpectedBytes{"balanced", Hierarchy::kNone, Effort::kDefault, "38a1b1bf5dbb87c9"},
        ExpectedBytes{"balanced", Hierarchy::kNone, Effort::kThorough, "6fc19c794a5395ef"},
        ExpectedBytes{"balanced", Hierarchy::kStrict, Effort::kDefault, "dc95a39ec04f9cbc"},
        ExpectedBytes{"balanced", Hierarchy::kStrict, Effort::kThorough, "f78731ca8edd0663"},
        ExpectedBytes{"balanced", Hierarchy::kSoft, Effort::kDefault, "421292c1b31dd185"},
        ExpectedBytes{"incremental", Hierarchy::kNone, Effort::kDefault, "4d1ca43f82468a14"},
        ExpectedBytes{"incremental", Hierarchy::kStrict, Effort::kDefault, "ededc2938b759666"},
        ExpectedBytes{"incremental", Hierarchy::kSoft, Effort::kDefault, "47b9c438787ec8f5"}));

}  // namespace
}  // namespace eplb
