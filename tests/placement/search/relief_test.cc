#include "placement/search/relief.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/placement/random_placement.h"

namespace eplb {
namespace {

Domain TwoGpus(std::vector<double> load, int32_t slots) {
  Domain domain;
  domain.load = std::move(load);
  domain.slots = {slots, slots};
  domain.speed = {1, 1};
  return domain;
}

TEST(ReliefTest, OneCopyIsPreferredToTwoThatWinAsMuch) {
  // GPU 0 holds 60 + 0 + 0 and GPU 1 30 + 10 + 0. A replica of 60 in place of a spare 0 on GPU 1
  // costs one copy.
  const Domain domain = TwoGpus({60, 30, 10, 0}, 3);
  Arrangement arrangement(domain);
  arrangement.Assign(std::vector<int32_t>{0, 3, 2, 1, 2, 3});
  Relief relief(arrangement, 2);
  const double before = arrangement.MaxLoad();
  ASSERT_TRUE(relief.Step(0, 0));
  EXPECT_LT(arrangement.MaxLoad(), before);
  EXPECT_EQ(relief.copies(), 1);
}

TEST(ReliefTest, NothingIsDoneAtTheTargetOrWithoutBudget) {
  const Domain domain = TwoGpus({60, 30, 10, 0}, 2);
  Arrangement arrangement(domain);
  arrangement.Assign(std::vector<int32_t>{0, 1, 2, 3});
  Relief at_target(arrangement, 2);
  EXPECT_FALSE(at_target.Step(90, 0));
  Relief without_budget(arrangement, 0);
  EXPECT_FALSE(without_budget.Step(0, 0));
  EXPECT_FALSE(without_budget.Chain(0, 0));
  EXPECT_FALSE(without_budget.Walk(0, 0));
  EXPECT_EQ(arrangement.MaxLoad(), 90);
}

TEST(ReliefTest, StepsChainsAndWalksLowerTheMaximumWithinTheBudget) {
  constexpr uint64_t kSeed = 40;
  testing::Random random(kSeed);
  for (int i = 0; i < 200; ++i) {
    Domain domain;
    const int32_t experts = testing::Pick(random, 4, 16);
    for (int32_t e = 0; e < experts; ++e) domain.load.push_back(testing::Pick(random, 0, 100));
    const int32_t gpus = testing::Pick(random, 2, 4);
    const int32_t slots = (experts + gpus - 1) / gpus + testing::Pick(random, 0, 1);
    domain.slots.assign(static_cast<size_t>(gpus), std::min(slots, experts));
    domain.speed.assign(static_cast<size_t>(gpus), 1);
    std::vector<int32_t> layout;
    for (int32_t slot = 0; slot < domain.num_slots(); ++slot) layout.push_back(slot % experts);
    Arrangement arrangement(domain);
    arrangement.Assign(layout);
    const int32_t budget = testing::Pick(random, 1, 3);
    Relief relief(arrangement, budget);
    double peak = arrangement.MaxLoad();
    while (relief.Step(0, 0) || relief.Chain(0, 0) || relief.Walk(0, 0)) {
      ASSERT_LT(arrangement.MaxLoad(), peak * (1 + 1e-12)) << "seed " << kSeed << " case " << i;
      peak = arrangement.MaxLoad();
      Arrangement again(domain);
      again.Assign(arrangement.experts());
      ASSERT_NEAR(again.MaxLoad(), peak, 1e-6);
      int32_t copies = 0;
      for (int32_t gpu = 0; gpu < gpus; ++gpu) {
        int32_t arrived = 0;
        for (int32_t s = arrangement.first_slot(gpu); s < arrangement.end_slot(gpu); ++s) {
          bool had = false;
          for (int32_t t = arrangement.first_slot(gpu); t < arrangement.end_slot(gpu); ++t) {
            had = had || layout[static_cast<size_t>(t)] == arrangement.expert_in(s);
          }
          arrived += had ? 0 : 1;
        }
        ASSERT_LE(arrived, budget) << "seed " << kSeed << " case " << i;
        copies += arrived;
      }
      ASSERT_EQ(relief.copies(), copies);
    }
  }
}

}  // namespace
}  // namespace eplb
