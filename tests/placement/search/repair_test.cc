#include "placement/search/repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(RepairTest, AWholeLayoutStaysAsItIs) {
  const Domain domain = MakeDomain({1, 2, 3}, 4, 2);
  std::vector<int32_t> layout = {0, 1, 2, 0};
  ASSERT_TRUE(Repair(domain, layout));
  EXPECT_THAT(layout, ElementsAre(0, 1, 2, 0));
}

TEST(RepairTest, ALostExpertTakesTheReplicaThatIsMissedLeast) {
  const Domain domain = MakeDomain({100, 10, 50, 7}, 6, 3);
  std::vector<int32_t> layout = {0, 1, 0, 2, 1, 2};
  ASSERT_TRUE(Repair(domain, layout));
  EXPECT_EQ(std::count(layout.begin(), layout.end(), 3), 1);
  EXPECT_EQ(std::count(layout.begin(), layout.end(), 1), 1);
}

TEST(RepairTest, ALostExpertGoesWhereTheGpuLoadsStayLowest) {
  const Domain domain = MakeDomain({60, 20, 30, 4}, 5, 2);
  std::vector<int32_t> layout = {0, 1, 2, 1, 2};
  ASSERT_TRUE(Repair(domain, layout));
  EXPECT_THAT(layout, ElementsAre(0, 1, 3, 1, 2));
}

TEST(RepairTest, EmptySlotsGoToTheLargestUnit) {
  const Domain domain = MakeDomain({100, 10, 50}, 4, 2);
  std::vector<int32_t> layout = {0, 1, 2, -1};
  ASSERT_TRUE(Repair(domain, layout));
  EXPECT_THAT(layout, ElementsAre(0, 1, 2, 0));
}

TEST(RepairTest, ImpossibleWithoutADuplicateIsSaid) {
  Domain domain = MakeDomain({1, 2, 3}, 3, 1);
  std::vector<int32_t> full = {0, 1, 1};
  EXPECT_TRUE(Repair(domain, full));
  // GPU 0 holds both experts already; neither may fill its third slot.
  domain = MakeDomain({1, 2}, 4, 2);
  domain.slots = {3, 1};
  std::vector<int32_t> layout = {0, 1, -1, 0};
  EXPECT_FALSE(Repair(domain, layout));
}

// Experts are at home on GPUs of their node; some GPU lost what it held.
TEST(RepairTest, HomesAreKept) {
  constexpr uint64_t kSeed = 7;
  Random random(kSeed);
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kSeed << " case " << i);
    // Two nodes of two GPUs with three slots; three experts at home on each.
    std::vector<double> load(6);
    for (double& tokens : load) tokens = Pick(random, 0, 100);
    Domain domain = MakeDomain(std::move(load), 12, 4);
    domain.affine_node_of_expert = {0, 0, 0, 1, 1, 1};
    domain.affine_node_of_gpu = {0, 0, 1, 1};
    domain.only_on_affine_node = Pick(random, 0, 1) == 1;
    std::vector<int32_t> layout = {0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5};
    for (int32_t lost = 0; lost < 5; ++lost) {
      layout[static_cast<size_t>(Pick(random, 0, 11))] = -1;
    }
    ASSERT_TRUE(Repair(domain, layout));
    EXPECT_THAT(layout, Each(::testing::Ge(0)));
    std::vector<int> on_affine_node(6);
    for (size_t slot = 0; slot < layout.size(); ++slot) {
      const auto expert = static_cast<size_t>(layout[slot]);
      const bool home = domain.affine_node_of_gpu[slot / 3] == domain.affine_node_of_expert[expert];
      on_affine_node[expert] += home ? 1 : 0;
      if (domain.only_on_affine_node) {
        EXPECT_TRUE(home) << "slot " << slot;
      }
    }
    EXPECT_THAT(on_affine_node, Each(::testing::Ge(1)));
  }
}

}  // namespace
}  // namespace eplb
