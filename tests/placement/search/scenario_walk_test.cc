#include "placement/search/scenario_walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "tests/placement/search/random_domain.h"

namespace eplb {
namespace {

constexpr uint64_t kWalkTestSeed = 92;
constexpr int64_t kProposals = 4000;

std::vector<int32_t> LayoutOf(const ScenarioWalk& walk) {
  const auto experts = walk.arrangement().experts();
  return {experts.begin(), experts.end()};
}

// Returns the objective of a layout from nothing but the layout.
double ObjectiveOf(Domain domain, const ScenarioLoads& loads, std::span<const int32_t> layout) {
  const double weights = std::accumulate(loads.weights.begin(), loads.weights.end(), 0.0);
  double mean = 0;
  double worst = 0;
  for (size_t k = 0; k < loads.tokens.size(); ++k) {
    domain.load = loads.tokens[k];
    const double ratio = PeakOf(domain, layout) / (domain.total_load() / domain.total_speed());
    mean += loads.weights[k] / weights * ratio;
    worst = std::max(worst, ratio);
  }
  return loads.objective == ScenarioObjective::kWorst ? worst : mean;
}

// Scenarios of one expert, of equal experts, of small numbers and of numbers decades apart.
ScenarioLoads RandomScenarios(Random& random, int32_t num_experts, int32_t most_scenarios) {
  ScenarioLoads loads;
  loads.tokens.resize(static_cast<size_t>(Pick(random, 1, most_scenarios)));
  for (auto& tokens : loads.tokens) {
    const int32_t kind = Pick(random, 0, 3);
    for (int32_t expert = 0; expert < num_experts; ++expert) {
      tokens.push_back(kind == 0   ? 0
                       : kind == 1 ? 7
                       : kind == 2 ? Pick(random, 0, 9)
                                   : static_cast<double>(int64_t{1} << Pick(random, 0, 20)));
    }
    tokens[static_cast<size_t>(Pick(random, 0, num_experts - 1))] += 1;
    loads.weights.push_back(Pick(random, 1, 4));
  }
  loads.objective = Pick(random, 0, 2) == 0 ? ScenarioObjective::kWorst : ScenarioObjective::kMean;
  return loads;
}

struct WalkCase {
  Domain domain;
  ScenarioLoads loads;
  std::vector<int32_t> layout;  // legal
};

WalkCase RandomCase(Random& random, const DomainOptions& options, int32_t most_scenarios = 9) {
  WalkCase result;
  result.domain = RandomDomain(random, options);
  result.loads = RandomScenarios(random, result.domain.num_experts(), most_scenarios);
  Arrangement arrangement(result.domain);
  Packer().Pack(RandomCounts(random, result.domain), arrangement);
  result.layout.assign(arrangement.experts().begin(), arrangement.experts().end());
  return result;
}

bool OnlyAtHome(const Domain& domain, std::span<const int32_t> layout) {
  const std::vector<int32_t> gpu_of = domain.GpuOfSlot();
  for (size_t slot = 0; slot < layout.size(); ++slot) {
    if (!domain.IsAtHome(gpu_of[slot], layout[slot])) return false;
  }
  return true;
}

// Gives each expert the home that all of its replicas are on, if the layout allows that.
bool AddStrictAffinity(Random& random, std::span<const int32_t> layout, Domain& domain) {
  AddNodeAffinity(random, layout, domain);
  domain.only_on_affine_node = true;
  return OnlyAtHome(domain, layout);
}

TEST(ScenarioWalkTest, EveryLayoutIsLegalAndTheObjectiveIsItsOwn) {
  Random random(kWalkTestSeed);
  int better = 0;
  int at_home = 0;
  for (int i = 0; i < 1200; ++i) {
    WalkCase one = RandomCase(random, {.speeds = i % 2 == 0, .duplicates = true});
    SCOPED_TRACE(::testing::Message()
                 << "seed " << kWalkTestSeed << " case " << i << ": " << Describe(one.domain));
    if (i % 4 == 1) AddNodeAffinity(random, one.layout, one.domain);
    if (i % 4 == 3 && !AddStrictAffinity(random, one.layout, one.domain)) continue;
    ScenarioWalk walk(one.domain, one.loads);
    walk.Start(one.layout);
    const double before = walk.Objective();
    for (const int step : {0, 1, 2, 3}) {
      if (step == 1) walk.Walk(kProposals, false);
      if (step == 2) walk.Walk(kProposals, true);
      if (step == 3) walk.Pack();
      const std::vector<int32_t> layout = LayoutOf(walk);
      ASSERT_EQ(WhyIllegal(one.domain, layout), "") << "step " << step;
      if (i % 4 == 3) {
        ASSERT_TRUE(OnlyAtHome(one.domain, layout)) << "step " << step;
      }
      ExpectConsistent(walk.arrangement());
      const double expected = ObjectiveOf(one.domain, one.loads, layout);
      ASSERT_NEAR(walk.Objective(), expected, 1e-9 * expected) << "step " << step;
      better += step == 2 && walk.Objective() < before * (1 - 1e-9) ? 1 : 0;
    }
    at_home += i % 4 == 3 ? 1 : 0;
  }
  EXPECT_GT(better, 600);
  EXPECT_GT(at_home, 50);
}

TEST(ScenarioWalkTest, IsDeterministicAndEndsWhenAbandoned) {
  Random random(kWalkTestSeed);
  const std::atomic<bool> abandoned = true;
  for (int i = 0; i < 50; ++i) {
    const WalkCase one = RandomCase(random, {.speeds = true, .duplicates = true});
    ScenarioWalk walk(one.domain, one.loads);
    ScenarioWalk other(one.domain, one.loads);
    walk.Start(one.layout);
    other.Start(one.layout);
    walk.Walk(kProposals, true, &abandoned);
    EXPECT_EQ(LayoutOf(walk), one.layout);
    ScenarioWalk third(one.domain, one.loads);
    third.Start(one.layout);
    other.Walk(kProposals, true);
    third.Walk(kProposals, true);
    EXPECT_EQ(LayoutOf(other), LayoutOf(third)) << "seed " << kWalkTestSeed << " case " << i;
  }
}

// Copies into a GPU: experts there that it did not hold.
LayoutCopies CopiesFrom(const WalkCase& one, std::span<const int32_t> layout) {
  const std::vector<int32_t> gpu_of = one.domain.GpuOfSlot();
  std::vector<int32_t> copies(one.domain.slots.size());
  for (size_t slot = 0; slot < layout.size(); ++slot) {
    bool held = false;
    for (size_t before = 0; before < layout.size(); ++before) {
      held = held || (gpu_of[before] == gpu_of[slot] && one.layout[before] == layout[slot]);
    }
    copies[AsIndex(gpu_of[slot])] += held ? 0 : 1;
  }
  return {std::accumulate(copies.begin(), copies.end(), 0), std::ranges::max(copies)};
}

TEST(ScenarioWalkTest, AnIncumbentLimitsTheCopiesIntoEachGpu) {
  Random random(kWalkTestSeed);
  int at_limit = 0;
  for (int i = 0; i < 600; ++i) {
    const WalkCase one = RandomCase(random, {.speeds = i % 2 == 0, .duplicates = true});
    SCOPED_TRACE(::testing::Message() << "seed " << kWalkTestSeed << " case " << i);
    const int32_t limit = i % 4;
    ScenarioWalk walk(one.domain, one.loads, {.layout = one.layout, .copies_per_gpu = limit});
    walk.Start(one.layout);
    for (const bool anneal : {false, true}) {
      walk.Walk(kProposals, anneal);
      const LayoutCopies copies = CopiesFrom(one, LayoutOf(walk));
      ASSERT_LE(copies.most, limit);
      at_limit += limit > 0 && copies.most == limit ? 1 : 0;
    }
  }
  EXPECT_GT(at_limit, 200);
}

TEST(ScenarioWalkTest, APriceKeepsCopiesThatGainLess) {
  Random random(kWalkTestSeed);
  int64_t free_copies = 0;
  int64_t cheap_copies = 0;
  for (int i = 0; i < 300; ++i) {
    const WalkCase one = RandomCase(random, {.speeds = i % 2 == 0, .duplicates = true});
    SCOPED_TRACE(::testing::Message() << "seed " << kWalkTestSeed << " case " << i);
    const auto copies = [&](double price) {
      ScenarioWalk walk(
          one.domain, one.loads,
          {.layout = one.layout, .copies_per_gpu = one.domain.num_slots(), .price = price});
      walk.Start(one.layout);
      walk.Walk(kProposals, false);
      return CopiesFrom(one, LayoutOf(walk)).sum;
    };
    free_copies += copies(0);
    cheap_copies += copies(0.01);
    // No objective is above the number of GPUs over the least speed.
    ASSERT_EQ(copies(1e6), 0);
  }
  EXPECT_LT(cheap_copies * 3, free_copies * 2) << cheap_copies << " of " << free_copies;
}

// Slots of GPUs that differ by more than one, filled at random. `domain` has no duplicates.
WalkCase UnevenCase(Random& random) {
  while (true) {
    WalkCase one;
    const int32_t experts = Pick(random, 2, 8);
    one.domain.load.assign(static_cast<size_t>(experts), 1);
    std::vector<int32_t> order(one.domain.load.size());
    std::iota(order.begin(), order.end(), 0);
    for (int32_t gpus = Pick(random, 2, 5); gpus > 0; --gpus) {
      one.domain.slots.push_back(Pick(random, 1, std::min(experts, 5)));
      one.domain.speed.push_back(0.5 * Pick(random, 1, 2));
      for (int32_t i = 0; i < one.domain.slots.back(); ++i) {
        std::swap(order[AsIndex(i)], order[AsIndex(Pick(random, i, experts - 1))]);
        one.layout.push_back(order[AsIndex(i)]);
      }
    }
    one.loads = RandomScenarios(random, experts, 3);
    if (WhyIllegal(one.domain, one.layout).empty()) return one;
  }
}

TEST(ScenarioWalkTest, PackKeepsTheCountsOrInADeadEndTheLayout) {
  Random random(kWalkTestSeed);
  int packed = 0;
  int dead_ends = 0;
  for (int i = 0; i < 10'000; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kWalkTestSeed << " case " << i);
    WalkCase one = UnevenCase(random);
    const bool strict = i % 2 == 1 && AddStrictAffinity(random, one.layout, one.domain);
    if (i % 2 == 1 && !strict) continue;
    ScenarioWalk walk(one.domain, one.loads);
    walk.Start(one.layout);
    const double before = walk.Objective();
    const Arrangement start = walk.arrangement();
    if (walk.Pack()) {
      ++packed;
      ASSERT_TRUE(std::ranges::equal(start.counts(), walk.arrangement().counts()));
    } else {
      ++dead_ends;
      ASSERT_EQ(LayoutOf(walk), one.layout);
      ASSERT_EQ(walk.Objective(), before);
    }
    walk.Walk(200, false);  // from a dead end too
    ASSERT_EQ(WhyIllegal(one.domain, LayoutOf(walk)), "");
    ASSERT_TRUE(!strict || OnlyAtHome(one.domain, LayoutOf(walk)));
  }
  EXPECT_GT(packed, 5000);
  EXPECT_GT(dead_ends, 20);
}

// A packing does not know homes of which an expert needs only one replica.
TEST(ScenarioWalkTest, PackLeavesLayoutsWithSoftHomesAsTheyAre) {
  Random random(kWalkTestSeed);
  WalkCase one = RandomCase(random, {});
  AddNodeAffinity(random, one.layout, one.domain);
  ScenarioWalk walk(one.domain, one.loads);
  walk.Start(one.layout);
  EXPECT_FALSE(walk.Pack());
  EXPECT_EQ(LayoutOf(walk), one.layout);
}

// Two scenarios, each with two hot experts, which a placement for the sum puts together.
TEST(ScenarioWalkTest, HotExpertsOfOneScenarioAreParted) {
  const Domain domain = MakeDomain({10, 10, 10, 10}, 4, 2);
  for (const ScenarioObjective objective : {ScenarioObjective::kMean, ScenarioObjective::kWorst}) {
    ScenarioWalk walk(
        domain,
        {.tokens = {{10, 10, 0, 0}, {0, 0, 10, 10}}, .weights = {1, 1}, .objective = objective});
    walk.Start(std::vector<int32_t>{0, 1, 2, 3});
    EXPECT_EQ(walk.Objective(), 2);
    walk.Walk(1000, false);
    EXPECT_EQ(walk.Objective(), 1);
  }
}

// A weight that is large makes its scenario the one that counts; `worst` looks at no weights.
TEST(ScenarioWalkTest, WeightsCountInTheMeanAlone) {
  const Domain domain = MakeDomain({1, 1, 1, 1}, 4, 2);
  ScenarioLoads loads = {.tokens = {{3, 3, 2, 2}, {3, 2, 2, 3}, {3, 2, 3, 2}},
                         .weights = {1, 1, 1000}};
  ScenarioWalk walk(domain, loads);
  walk.Start(std::vector<int32_t>{0, 2, 1, 3});
  walk.Walk(1000, true);
  EXPECT_NEAR(walk.Objective(), (1 + 1.2 + 1000) / 1002, 0.2 / 1002);
  loads.objective = ScenarioObjective::kWorst;
  ScenarioWalk worst(domain, loads);
  worst.Start(std::vector<int32_t>{0, 2, 1, 3});
  EXPECT_DOUBLE_EQ(worst.Objective(), 1.2);
}

// Worlds so small that all layouts can be tried. Their steps are coarse, and from a single layout a
// walk ends in another optimum of the mean in one of six worlds.
TEST(ScenarioWalkTest, FromEightLayoutsItReachesTheBestOfAllNearlyAlways) {
  constexpr int kStarts = 8;
  Random random(kWalkTestSeed);
  int worlds = 0;
  int reached = 0;
  double excess = 0;
  for (; worlds < 400; ++worlds) {
    const WalkCase one = RandomCase(random,
                                    {.max_experts = 6,
                                     .max_gpus = 3,
                                     .max_slots = 8,
                                     .speeds = worlds % 2 == 0,
                                     .duplicates = true},
                                    4);
    double best = std::numeric_limits<double>::infinity();
    ForEachLayout(one.domain, [&](std::span<const int32_t> layout) {
      best = std::min(best, ObjectiveOf(one.domain, one.loads, layout));
    });
    double found = std::numeric_limits<double>::infinity();
    Arrangement arrangement(one.domain);
    ScenarioWalk walk(one.domain, one.loads);
    for (int start = 0; start < kStarts; ++start) {
      Packer().Pack(RandomCounts(random, one.domain), arrangement);
      walk.Start(arrangement.experts());
      walk.Walk(2000, true);
      walk.Walk(1000, false);
      found = std::min(found, ObjectiveOf(one.domain, one.loads, LayoutOf(walk)));
    }
    ASSERT_GE(found, best * (1 - 1e-9)) << "seed " << kWalkTestSeed << " world " << worlds;
    reached += found < best * (1 + 1e-9) ? 1 : 0;
    excess += found / best - 1;
  }
  // Measured: 378 of 400, and 0.9 % above the best as a mean over all worlds.
  EXPECT_GE(reached, 370);
  EXPECT_LE(excess / worlds, 0.012);
}

}  // namespace
}  // namespace eplb
