#include "placement/search/improvement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "placement/search/pack.h"
#include "tests/placement/search/random_domain.h"

namespace eplb {

namespace {

TEST(SmoothMaximumTest, EqualLoadsAreAboveThePeakByTheirNumber) {
  const std::vector<double> loads(8, 100);
  EXPECT_NEAR(SmoothMaximum(loads, 100), 100 + SoftnessOf(100, 100) * std::log(8), 1e-9);
}

TEST(SmoothMaximumTest, OneLoadIsItself) { EXPECT_EQ(SmoothMaximum(std::vector<double>{7}, 3), 7); }

TEST(SmoothMaximumTest, GpusNearTheTopCountAndColdOnesDoNot) {
  const double alone = SmoothMaximum(std::vector<double>{105, 100, 95}, 100);
  EXPECT_GT(SmoothMaximum(std::vector<double>{105, 104, 91}, 100), alone);
  EXPECT_NEAR(SmoothMaximum(std::vector<double>{105, 0, 0}, 100), 105, 1e-6);
}

TEST(SmoothMaximumTest, LoadsFarAboveTheScaleAreFinite) {
  const double soft = SmoothMaximum(std::vector<double>{1e18, 0, 0, 0}, 1);
  EXPECT_GE(soft, 1e18);
  EXPECT_LE(soft, 1e18 + SoftnessOf(1e18, 1) * std::log(4));
}

TEST(SmoothMaximumTest, SoftnessGrowsWithTheDistanceFromTheScale) {
  EXPECT_EQ(SoftnessOf(100, 100), SoftnessOf(101, 100));
  EXPECT_GT(SoftnessOf(200, 100), SoftnessOf(150, 100));
}

constexpr uint64_t kImprovementSeed = 40;

double SmoothMaximumOf(const Arrangement& arrangement, double scale) {
  std::vector<double> loads;
  loads.reserve(static_cast<size_t>(arrangement.num_gpus()));
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) loads.push_back(arrangement.load(gpu));
  return SmoothMaximum(loads, scale);
}

double SquaredUnits(const Arrangement& arrangement) {
  double sum = 0;
  for (int32_t slot = 0; slot < arrangement.num_slots(); ++slot) {
    sum += arrangement.unit_in(slot) * arrangement.unit_in(slot);
  }
  return sum;
}

// Copies that arrived at each GPU since `layout`.
std::vector<int32_t> Arrivals(const Arrangement& arrangement, const std::vector<int32_t>& layout) {
  std::vector<int32_t> arrivals;
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    const auto begin = layout.begin() + arrangement.first_slot(gpu);
    const auto end = layout.begin() + arrangement.end_slot(gpu);
    int32_t arrived = 0;
    for (int32_t s = arrangement.first_slot(gpu); s < arrangement.end_slot(gpu); ++s) {
      arrived += std::find(begin, end, arrangement.expert_in(s)) == end ? 1 : 0;
    }
    arrivals.push_back(arrived);
  }
  return arrivals;
}

TEST(ImprovementStepsTest, OneCopyIsPreferredToTwoThatWinAsMuch) {
  // GPU 0 holds 60 + 0 + 0 and GPU 1 30 + 10 + 0. A replica of 60 in place of a spare 0 on GPU 1
  // costs one copy.
  const Domain domain = MakeDomain({60, 30, 10, 0}, 6, 2);
  Arrangement arrangement(domain);
  arrangement.Assign(std::vector<int32_t>{0, 3, 2, 1, 2, 3});
  ImprovementSteps improvement(arrangement, 50, {.copies_per_gpu = 2, .copies = 6});
  const double before = arrangement.MaxLoad();
  ASSERT_TRUE(improvement.Step(0));
  EXPECT_LT(arrangement.MaxLoad(), before);
  EXPECT_EQ(improvement.copies(), 1);
}

TEST(ImprovementStepsTest, AHotGpuBelowTheHottestIsRelievedToo) {
  // Loads 100 (one expert, nothing to be done), 99 and 1 with two slots each: 50 + 49 and 1 + 0.
  const Domain domain = MakeDomain({100, 0, 50, 49, 1, 0}, 6, 3);
  Arrangement arrangement(domain);
  arrangement.Assign(std::vector<int32_t>{0, 1, 2, 3, 4, 5});
  ImprovementSteps improvement(arrangement, 100, {.copies_per_gpu = 2, .copies = 6});
  ASSERT_TRUE(improvement.Step(0));
  EXPECT_EQ(arrangement.load(0), 100);
  EXPECT_LE(std::max(arrangement.load(1), arrangement.load(2)), 51);
}

TEST(ImprovementStepsTest, NothingIsDoneThatWinsTooLittleOrGoesBeyondTheLimits) {
  const Domain domain = MakeDomain({60, 30, 10, 0}, 4, 2);
  Arrangement arrangement(domain);
  arrangement.Assign(std::vector<int32_t>{0, 1, 2, 3});
  ImprovementSteps demanding(arrangement, 50, {.copies_per_gpu = 2, .copies = 4});
  EXPECT_FALSE(demanding.Step(10));
  ImprovementSteps no_gpu(arrangement, 50, {.copies_per_gpu = 0, .copies = 4});
  EXPECT_FALSE(no_gpu.Step(0));
  ImprovementSteps one_copy(arrangement, 50, {.copies_per_gpu = 2, .copies = 1});
  EXPECT_FALSE(one_copy.Step(0));  // an exchange takes two
  EXPECT_EQ(arrangement.MaxLoad(), 90);
}

TEST(ImprovementStepsTest, SpreadGivesTheLargestUnitAnotherReplica) {
  // All GPUs carry 40; expert 0 is one unit of 40, expert 3 is two of 5.
  const Domain domain = MakeDomain({40, 35, 35, 10}, 6, 3);
  Arrangement arrangement(domain);
  arrangement.Assign(std::vector<int32_t>{0, 3, 1, 3, 2, 1});
  const double before = SquaredUnits(arrangement);
  ImprovementSteps improvement(arrangement, 40, {.copies_per_gpu = 1, .copies = 2});
  ASSERT_TRUE(improvement.Spread(0));
  EXPECT_EQ(arrangement.count(0), 2);
  EXPECT_LT(SquaredUnits(arrangement), before);
  EXPECT_FALSE(improvement.Spread(0.9));
}

// Random domains with the limits and the incumbents that a test draws.
struct Case {
  explicit Case(Random& random)
      : limits({.copies_per_gpu = Pick(random, 1, 3), .copies = Pick(random, 1, 8)}) {
    const int32_t gpus = Pick(random, 2, 4);
    const int32_t experts = Pick(random, 4, 16);
    std::vector<double> load(static_cast<size_t>(experts));
    for (double& tokens : load) tokens = Pick(random, 0, 100);
    load[0] += 1;  // never nothing at all
    const int32_t slots = std::min((experts + gpus - 1) / gpus + Pick(random, 0, 1), experts);
    domain = MakeDomain(std::move(load), slots * gpus, gpus);
    for (double& speed : domain.speed) speed = Pick(random, 1, 2);
    for (int32_t slot = 0; slot < domain.num_slots(); ++slot) layout.push_back(slot % experts);
    double speed = 0;
    for (const double one : domain.speed) speed += one;
    scale = domain.total_load() / speed;
  }
  Domain domain;
  ImprovementLimits limits;
  std::vector<int32_t> layout;
  double scale = 0;
};

void ExpectWithinLimits(const Case& it, const Arrangement& arrangement,
                        const ImprovementSteps& improvement) {
  Arrangement again(it.domain);
  again.Assign(arrangement.experts());
  EXPECT_NEAR(again.MaxLoad(), arrangement.MaxLoad(), 1e-6);
  int32_t copies = 0;
  for (const int32_t arrived : Arrivals(arrangement, it.layout)) {
    EXPECT_LE(arrived, it.limits.copies_per_gpu);
    copies += arrived;
  }
  EXPECT_EQ(improvement.copies(), copies);
  EXPECT_LE(copies, it.limits.copies);
}

TEST(ImprovementStepsTest, StepsLowerTheSmoothMaximumWithinTheLimits) {
  Random random(kImprovementSeed);
  int steps = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kImprovementSeed << " case " << i);
    const Case it(random);
    Arrangement arrangement(it.domain);
    arrangement.Assign(it.layout);
    ImprovementSteps improvement(arrangement, it.scale, it.limits);
    double before = SmoothMaximumOf(arrangement, it.scale);
    for (; improvement.Step(0); ++steps) {
      const double after = SmoothMaximumOf(arrangement, it.scale);
      ASSERT_LT(after, before);
      before = after;
      ExpectWithinLimits(it, arrangement, improvement);
    }
  }
  EXPECT_GT(steps, 300);
}

// Sum of the GPUs' weights under the softness of `peak`.
double WeightsOf(const Arrangement& arrangement, double peak, double scale) {
  double sum = 0;
  for (int32_t gpu = 0; gpu < arrangement.num_gpus(); ++gpu) {
    sum += std::exp((arrangement.load(gpu) - peak) / SoftnessOf(peak, scale));
  }
  return sum;
}

// The most weight that any one step takes per copy, a step without a copy counting as a quarter.
class Exhaustive {
 public:
  Exhaustive(const Case& it, const Arrangement& before) : it_(it), before_(before) {
    const int32_t slots = before.num_slots();
    for (int32_t a = 0; a < slots; ++a) {
      for (int32_t b = a + 1; b < slots; ++b) {
        if (before.gpu_of(a) == before.gpu_of(b) || !before.MaySwap(a, b)) continue;
        // Only what takes tokens from the hotter GPU is looked at.
        const bool a_is_hot = before.load(before.gpu_of(a)) > before.load(before.gpu_of(b));
        if (a_is_hot != (before.unit_in(a) > before.unit_in(b))) continue;
        Arrangement after = before;
        after.Swap(a, b);
        best_ = std::max(best_, ValueOf(after));
      }
      const int32_t held = before.expert_in(a);
      for (int32_t expert = 0; expert < it.domain.num_experts(); ++expert) {
        if (expert == held || before.count(held) < 2 || !before.MayReplace(a, expert)) continue;
        Arrangement after = before;
        after.Replace(a, expert);
        best_ = std::max(best_, ValueOf(after));
      }
    }
  }

  double best() const { return best_; }
  // Weight per copy of one step; 0 beyond the limits.
  double ValueOf(const Arrangement& after) const {
    const std::vector<int32_t> arrived = Arrivals(after, it_.layout);
    const std::vector<int32_t> had = Arrivals(before_, it_.layout);
    const auto sum = [](const std::vector<int32_t>& of) {
      return std::accumulate(of.begin(), of.end(), 0);
    };
    if (std::ranges::max(arrived) > it_.limits.copies_per_gpu || sum(arrived) > it_.limits.copies) {
      return 0;
    }
    const double peak = before_.MaxLoad();
    const double win = WeightsOf(before_, peak, it_.scale) - WeightsOf(after, peak, it_.scale);
    return win / std::max(0.25, double{1} * (sum(arrived) - sum(had)));
  }

 private:
  const Case& it_;
  const Arrangement& before_;
  double best_ = 0;
};

TEST(ImprovementStepsTest, NoOtherStepWinsMorePerCopy) {
  Random random(kImprovementSeed);
  int steps = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kImprovementSeed << " case " << i);
    Case it(random);
    if (i % 2 == 0) std::ranges::fill(it.domain.speed, 1.0);
    Arrangement arrangement(it.domain);
    arrangement.Assign(it.layout);
    ImprovementSteps improvement(arrangement, it.scale, it.limits);
    for (;; ++steps) {
      const Arrangement before = arrangement;
      const Exhaustive all(it, before);
      if (!improvement.Step(0)) {
        EXPECT_LT(all.best(), 1e-9);
        break;
      }
      EXPECT_GE(all.ValueOf(arrangement), all.best() * (1 - 1e-9));
    }
  }
  EXPECT_GT(steps, 300);
}

TEST(ImprovementStepsTest, SpreadsLowerTheSquaredUnitsWithinTheLimits) {
  Random random(kImprovementSeed);
  int spreads = 0;
  for (int i = 0; i < 300; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << kImprovementSeed << " case " << i);
    const Case it(random);
    Arrangement arrangement(it.domain);
    arrangement.Assign(it.layout);
    ImprovementSteps improvement(arrangement, it.scale, it.limits);
    double before = SquaredUnits(arrangement);
    for (; improvement.Spread(0.01); ++spreads) {
      const double after = SquaredUnits(arrangement);
      ASSERT_LE(after, before * 0.99 * (1 + 1e-9));
      before = after;
      ExpectWithinLimits(it, arrangement, improvement);
    }
  }
  EXPECT_GT(spreads, 100);
}

}  // namespace

}  // namespace eplb
