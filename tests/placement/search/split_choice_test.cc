#include "placement/search/split_choice.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <set>
#include <vector>

#include "placement/search/split_peaks.h"

namespace eplb {
namespace {

constexpr uint64_t kSplitChoiceSeed = 61;

// 16 experts in 20 slots on 4 GPUs: four owned experts and one outlet on each.
struct ChoiceCase {
  Domain domain;
  std::vector<std::vector<double>> batches;
  std::vector<int32_t> incumbent;

  double MeanOf(const std::vector<int32_t>& layout) const {
    return SplitPeaks(domain, batches).MeanOf(layout);
  }
  std::vector<int32_t> Choose(SplitChoice choice) const {
    choice.incumbent = incumbent;
    choice.batches = batches;
    return ChooseForSplit(domain, choice);
  }
};

ChoiceCase MakeChoiceCase(uint64_t seed) {
  std::mt19937_64 random(kSplitChoiceSeed + seed);
  ChoiceCase one;
  one.domain.slots = {5, 5, 5, 5};
  one.domain.speed = {1, 1, 1, 1};
  one.domain.load.assign(16, 0);
  for (int batch = 0; batch < 4; ++batch) {
    std::vector<double> load;
    for (size_t expert = 0; expert < 16; ++expert) {
      load.push_back(static_cast<double>(100 + random() % 100 * (expert % 5 == 0 ? 20 : 1)));
      one.domain.load[expert] += load.back();
    }
    one.batches.push_back(load);
  }
  for (int32_t gpu = 0; gpu < 4; ++gpu) {
    for (int32_t i = 0; i < 4; ++i) one.incumbent.push_back(4 * gpu + i);
    one.incumbent.push_back((4 * gpu + 5) % 16);
  }
  return one;
}

TEST(SplitChoiceTest, TheChoiceIsValidAndNeverWorseThanTheIncumbent) {
  int better = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const ChoiceCase one = MakeChoiceCase(seed);
    const std::vector<int32_t> layout = one.Choose({.copies_per_gpu = 16, .most_swaps = 16});
    ASSERT_EQ(layout.size(), 20u);
    EXPECT_EQ(std::set<int32_t>(layout.begin(), layout.end()).size(), 16u) << seed;
    for (int gpu = 0; gpu < 4; ++gpu) {
      const auto first = layout.begin() + 5 * gpu;
      EXPECT_EQ(std::set<int32_t>(first, first + 5).size(), 5u) << seed;
    }
    EXPECT_LE(one.MeanOf(layout), one.MeanOf(one.incumbent)) << seed;
    if (one.MeanOf(layout) < 0.9 * one.MeanOf(one.incumbent)) ++better;
    EXPECT_EQ(one.Choose({.copies_per_gpu = 16, .most_swaps = 16}), layout) << seed;
  }
  EXPECT_GT(better, 10);
}

TEST(SplitChoiceTest, NoGpuTakesMoreCopiesThanAllowed) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const ChoiceCase one = MakeChoiceCase(seed);
    for (const int32_t most : {0, 1, 2}) {
      const auto layout = one.Choose({.copies_per_gpu = most, .most_swaps = 16});
      EXPECT_LE(CopiesBetween(one.domain, one.incumbent, layout).most, most) << seed;
    }
  }
}

TEST(SplitChoiceTest, ACopyThatCostsMoreThanItSavesIsNotMade) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const ChoiceCase one = MakeChoiceCase(seed);
    EXPECT_EQ(one.Choose({.copies_per_gpu = 16, .price_of_all_slots = 100, .most_swaps = 16}),
              one.incumbent);
    const auto layout =
        one.Choose({.copies_per_gpu = 16, .price_of_all_slots = 0.5, .most_swaps = 16});
    const int32_t copies = CopiesBetween(one.domain, one.incumbent, layout).sum;
    EXPECT_LE(one.MeanOf(layout) + 0.5 * copies / 20, one.MeanOf(one.incumbent) + 1e-9) << seed;
  }
}

TEST(SplitChoiceTest, AnotherLayoutIsTheOnlyCandidateBesideTheIncumbent) {
  const ChoiceCase one = MakeChoiceCase(3);
  const auto best = one.Choose({.copies_per_gpu = 16, .most_swaps = 16});
  ASSERT_NE(best, one.incumbent);
  EXPECT_EQ(one.Choose({.other = best, .copies_per_gpu = 16}), best);
  ChoiceCase back = one;
  back.incumbent = best;
  EXPECT_EQ(back.Choose({.other = one.incumbent, .copies_per_gpu = 16}), best);
}

TEST(SplitChoiceTest, WithoutLoadTheIncumbentStays) {
  ChoiceCase one = MakeChoiceCase(0);
  one.domain.load.assign(16, 0);
  one.batches.assign(2, std::vector<double>(16, 0));
  EXPECT_EQ(one.Choose({.copies_per_gpu = 16, .most_swaps = 16}), one.incumbent);
}

TEST(SplitChoiceTest, AnAbandonedSearchStillAnswersWithAValidLayout) {
  const ChoiceCase one = MakeChoiceCase(1);
  const std::atomic<bool> abandoned{true};
  const auto layout = one.Choose({.copies_per_gpu = 16, .most_swaps = 16, .abandoned = &abandoned});
  EXPECT_LE(one.MeanOf(layout), one.MeanOf(one.incumbent));
  EXPECT_EQ(std::set<int32_t>(layout.begin(), layout.end()).size(), 16u);
}

}  // namespace
}  // namespace eplb
