#include "placement/scenario_medoids.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "placement/scenarios.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Load Counts(const std::vector<std::vector<int64_t>>& rows) {
  LoadMatrix counts(static_cast<Eigen::Index>(rows.size()),
                    static_cast<Eigen::Index>(rows.front().size()));
  for (Eigen::Index i = 0; i < counts.size(); ++i) {
    counts(i / counts.cols(), i % counts.cols()) =
        rows[static_cast<size_t>(i / counts.cols())][static_cast<size_t>(i % counts.cols())];
  }
  return *Load::FromCounts(std::move(counts));
}

std::vector<const Load*> Pointers(const std::vector<Load>& loads) {
  std::vector<const Load*> pointers;
  for (const Load& load : loads) pointers.push_back(&load);
  return pointers;
}

absl::StatusOr<ScenarioChoice> Choose(const std::vector<Load>& loads, int k) {
  return ChooseScenarios(Pointers(loads), k);
}

std::vector<Load> RandomWindows(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Load> windows;
  for (size_t i = 0; i < n; ++i) {
    std::vector<std::vector<int64_t>> rows(2, std::vector<int64_t>(6));
    for (auto& row : rows) {
      for (int64_t& cell : row) cell = static_cast<int64_t>(random() % 1000);
    }
    windows.push_back(Counts(rows));
  }
  return windows;
}

// By the definition in the header.
double DistanceOf(const Load& a, const Load& b) {
  double sum = 0;
  for (int layer = 0; layer < a.num_layers(); ++layer) {
    const Eigen::ArrayXd one = a.ToDouble().row(layer);
    const Eigen::ArrayXd other = b.ToDouble().row(layer);
    sum += (one / one.sum() - other / other.sum()).abs().sum() / 2;
  }
  return sum / a.num_layers();
}

// Mean distance of all windows to the nearest of the chosen.
double MeanDistance(const std::vector<Load>& windows, const std::vector<size_t>& chosen) {
  double sum = 0;
  for (const Load& window : windows) {
    double least = std::numeric_limits<double>::max();
    for (const size_t i : chosen) least = std::min(least, DistanceOf(window, windows[i]));
    sum += least;
  }
  return sum / static_cast<double>(windows.size());
}

TEST(ScenarioMedoidsTest, FindsTheRegimesOfATrace) {
  std::vector<Load> windows;
  for (int64_t i = 0; i < 10; ++i) {
    // Night has a tenth of the tokens and other hot experts; 3 of 10 windows.
    windows.push_back(i % 3 == 1 ? Counts({{1, 2, 10 + i, 1}}) : Counts({{500 + i, 20, 10, 300}}));
  }
  const auto choice = Choose(windows, 2);
  ASSERT_TRUE(choice.ok()) << choice.status();
  ASSERT_EQ(choice->windows.size(), 2U);
  std::vector<double> weights = choice->weights;
  std::ranges::sort(weights);
  EXPECT_THAT(weights, ElementsAre(3, 7));
  EXPECT_NE(choice->windows[0] % 3 == 1, choice->windows[1] % 3 == 1);
  EXPECT_LT(choice->max_distance, 0.15);
}

TEST(ScenarioMedoidsTest, DistancesAndWeightsAreThoseOfTheDefinition) {
  const std::vector<Load> windows = RandomWindows(20, 1);
  const auto choice = Choose(windows, 4);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_NEAR(choice->mean_distance, MeanDistance(windows, choice->windows), 1e-6);
  double farthest = std::numeric_limits<double>::max();
  for (const size_t i : choice->windows) {
    farthest = std::min(farthest, DistanceOf(windows[choice->farthest], windows[i]));
  }
  EXPECT_NEAR(choice->max_distance, farthest, 1e-6);
  EXPECT_GE(choice->max_distance, choice->mean_distance);
  EXPECT_EQ(std::accumulate(choice->weights.begin(), choice->weights.end(), 0.0), 20);
  EXPECT_GE(*std::ranges::min_element(choice->weights), 1);
  EXPECT_TRUE(std::ranges::is_sorted(choice->windows));
}

TEST(ScenarioMedoidsTest, TheOrderOfWindowsDoesNotMatter) {
  const std::vector<Load> windows = RandomWindows(30, 2);
  std::vector<size_t> order(windows.size());
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(3));
  std::vector<Load> shuffled;
  for (const size_t i : order) shuffled.push_back(windows[i]);
  const auto choice = Choose(windows, 5);
  const auto other = Choose(shuffled, 5);
  ASSERT_TRUE(choice.ok() && other.ok());
  std::set<size_t> back;
  for (const size_t i : other->windows) back.insert(order[i]);
  EXPECT_EQ(std::set<size_t>(choice->windows.begin(), choice->windows.end()), back);
  EXPECT_EQ(Choose(windows, 5)->windows, choice->windows);
}

TEST(ScenarioMedoidsTest, IsCloseToTheBestOfAllChoices) {
  int best = 0;
  for (unsigned seed = 0; seed < 20; ++seed) {
    const std::vector<Load> windows = RandomWindows(9, 100 + seed);
    double least = std::numeric_limits<double>::max();
    for (size_t a = 0; a < windows.size(); ++a) {
      for (size_t b = a + 1; b < windows.size(); ++b) {
        for (size_t c = b + 1; c < windows.size(); ++c) {
          least = std::min(least, MeanDistance(windows, {a, b, c}));
        }
      }
    }
    const auto choice = Choose(windows, 3);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_LE(choice->mean_distance, 1.1 * least) << seed;
    if (choice->mean_distance <= least + 1e-6) ++best;
  }
  EXPECT_GE(best, 16);
}

TEST(ScenarioMedoidsTest, TakesAllWindowsThatDifferIfTheyAreFew) {
  const std::vector<Load> windows = RandomWindows(5, 4);
  for (const int k : {5, 64}) {
    const auto choice = Choose(windows, k);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_THAT(choice->windows, ElementsAre(0, 1, 2, 3, 4));
    EXPECT_THAT(choice->weights, ElementsAre(1, 1, 1, 1, 1));
    EXPECT_EQ(choice->max_distance, 0);
  }
  // The second differs from the first only in the number of tokens.
  const auto choice = Choose({Counts({{1, 2}}), Counts({{100, 200}}), Counts({{2, 1}})}, 3);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->windows, ElementsAre(0, 2));
  EXPECT_THAT(choice->weights, ElementsAre(2, 1));
}

TEST(ScenarioMedoidsTest, IgnoresWindowsWithoutTokens) {
  const Load idle = Counts({{0, 0}, {0, 0}});
  const auto choice = Choose({idle, Counts({{1, 2}, {0, 0}}), idle, Counts({{1, 2}, {3, 4}})}, 3);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_THAT(choice->windows, ElementsAre(1, 3));
  EXPECT_THAT(choice->weights, ElementsAre(1, 1));
  // A layer without load is at 1/2 from one with load.
  EXPECT_NEAR(Choose({Counts({{1, 2}, {0, 0}}), Counts({{1, 2}, {3, 4}})}, 1)->max_distance, 0.25,
              1e-6);
}

TEST(ScenarioMedoidsTest, EachOfManyWindowsIsStoodFor) {
  const std::vector<Load> windows = RandomWindows(3 * kMaxCandidates + 7, 5);
  const auto choice = Choose(windows, 8);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->windows.size(), 8U);
  EXPECT_EQ(std::accumulate(choice->weights.begin(), choice->weights.end(), 0.0),
            static_cast<double>(windows.size()));
  EXPECT_NEAR(choice->mean_distance, MeanDistance(windows, choice->windows), 1e-6);
}

TEST(ScenarioMedoidsTest, RefusesWhatItCannotChooseFrom) {
  const std::vector<Load> windows = RandomWindows(3, 6);
  EXPECT_THAT(Choose(windows, 0).status().message(), HasSubstr("0 scenarios, expected 1..64"));
  EXPECT_THAT(Choose(windows, 65).status().message(), HasSubstr("65 scenarios"));
  EXPECT_THAT(Choose({}, 1).status().message(), HasSubstr("there is no window"));
  EXPECT_THAT(Choose({Counts({{0}})}, 1).status().message(), HasSubstr("no window has tokens"));
  EXPECT_THAT(Choose({Counts({{1, 1}}), Counts({{1}})}, 1).status().message(),
              HasSubstr("window 1 has 1 layers x 1 experts, window 0 has 1 x 2"));
}

}  // namespace
}  // namespace eplb
