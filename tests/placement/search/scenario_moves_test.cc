#include "placement/search/scenario_moves.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "placement/search/pack.h"
#include "placement/search/scenario_walk.h"
#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kMovesSeed = 94;

struct MovesCase {
  Domain domain;
  ScenarioLoads loads;
  std::vector<int32_t> incumbent;  // legal
  std::vector<int32_t> other;      // legal
};

MovesCase RandomMoves(Random& random) {
  MovesCase one;
  one.domain = RandomDomain(random, {.speeds = true, .duplicates = true});
  Arrangement arrangement(one.domain);
  for (std::vector<int32_t>* layout : {&one.incumbent, &one.other}) {
    Packer().Pack(RandomCounts(random, one.domain), arrangement);
    layout->assign(arrangement.experts().begin(), arrangement.experts().end());
  }
  for (int32_t k = Pick(random, 2, 5); k > 0; --k) {
    one.loads.weights.push_back(Pick(random, 1, 3));
    one.loads.tokens.emplace_back();
    for (size_t e = 0; e < one.domain.load.size(); ++e) {
      one.loads.tokens.back().push_back(Pick(random, 1, 50));
    }
  }
  return one;
}

double ObjectiveAt(const MovesCase& one, std::span<const int32_t> layout) {
  ScenarioWalk walk(one.domain, one.loads);
  walk.Start(layout);
  return walk.Objective();
}

TEST(ScenarioMovesTest, EveryChoicePaysForItsCopiesWithinTheLimit) {
  Random random(kMovesSeed);
  int moved = 0;
  int others = 0;
  for (int i = 0; i < 500; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kMovesSeed << " case " << i);
    const MovesCase one = RandomMoves(random);
    const double price_of_all = i % 3 == 0 ? 0 : 0.1 * Pick(random, 1, 10);
    const int32_t limit = Pick(random, 0, 4);
    const std::vector<int32_t> found = ChooseForScenarios(one.domain, one.loads,
                                                          {.incumbent = one.incumbent,
                                                           .other = one.other,
                                                           .copies_per_gpu = limit,
                                                           .price_of_all_slots = price_of_all,
                                                           .proposals = 2000});
    ASSERT_EQ(WhyIllegal(one.domain, found), "");
    const LayoutCopies copies = CopiesBetween(one.domain, one.incumbent, found);
    const double price = price_of_all * copies.sum / one.domain.num_slots();
    ASSERT_LE(copies.most, limit);
    if (found == one.incumbent) continue;
    ASSERT_LT(ObjectiveAt(one, found) + price, ObjectiveAt(one, one.incumbent));
    ++moved;
    others += found == one.other ? 1 : 0;
  }
  EXPECT_GT(moved, 200);
  EXPECT_GT(others, 0);
}

TEST(ScenarioMovesTest, TheOtherLayoutIsTakenIfItIsTheBestAllowed) {
  // Both scenarios are even only if experts 0 and 1 are apart, and 2 and 3.
  MovesCase one = {.domain = MakeDomain({1, 1, 1, 1}, 4, 2),
                   .loads = {.tokens = {{1, 1, 0, 0}, {0, 0, 1, 1}}, .weights = {1, 1}},
                   .incumbent = {0, 1, 2, 3},
                   .other = {0, 2, 1, 3}};
  const auto choose = [&](int32_t copies_per_gpu, double price) {
    return ChooseForScenarios(one.domain, one.loads,
                              {.incumbent = one.incumbent,
                               .other = one.other,
                               .copies_per_gpu = copies_per_gpu,
                               .price_of_all_slots = price});
  };
  EXPECT_EQ(choose(1, 0.1), one.other);
  EXPECT_EQ(choose(0, 0.1), one.incumbent);
  EXPECT_EQ(choose(1, 1.9), one.other);  // two of four slots, for an objective that falls by 1
  EXPECT_EQ(choose(1, 2.1), one.incumbent);
}

}  // namespace
}  // namespace eplb
