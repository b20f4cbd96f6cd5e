#include "server/core/state/gpu_speed_estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace eplb::core {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kEnough = static_cast<int>(GpuSpeedEstimate::kWindows);

// Step times of GPUs with these tokens and speeds.
std::vector<double> TimesOf(const std::vector<double>& tokens, const std::vector<double>& speeds,
                            double fixed = 0) {
  std::vector<double> seconds;
  for (size_t gpu = 0; gpu < tokens.size(); ++gpu) {
    seconds.push_back((fixed + 1e-6 * tokens[gpu]) / speeds[gpu]);
  }
  return seconds;
}

std::vector<GpuSpeedEstimate::Change> AddWindows(GpuSpeedEstimate& estimate, int count,
                                                 const std::vector<double>& seconds,
                                                 const std::vector<double>& tokens) {
  std::vector<GpuSpeedEstimate::Change> changes;
  for (int window = 0; window < count; ++window) {
    for (const auto& change : estimate.AddWindow(seconds, tokens)) changes.push_back(change);
  }
  return changes;
}

TEST(GpuSpeedEstimateTest, ASlowGpuIsNamedAfterEnoughWindowsWithItsSpeed) {
  const std::vector<double> tokens = {9000, 12000, 10000, 11000};
  const std::vector<double> seconds = TimesOf(tokens, {1, 1, 0.8, 1});
  GpuSpeedEstimate estimate;
  EXPECT_THAT(AddWindows(estimate, kEnough - 1, seconds, tokens), IsEmpty());
  const auto changes = AddWindows(estimate, 1, seconds, tokens);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].gpu, 2);
  EXPECT_EQ(changes[0].after, 0.8);
  EXPECT_EQ(estimate.slow(), (std::vector<wire::StatedSpeed>{{2, 0.8}}));
  EXPECT_EQ(SpeedSentence(estimate, estimate.slow()[0]),
            "GPU 2 runs at 0.80 of the median GPU: in the median of 8 windows its step took 12 ms, "
            "10 ms are expected for its tokens");
}

TEST(GpuSpeedEstimateTest, MoreTokensAreNoSlowGpu) {
  const std::vector<double> tokens = {30000, 10000, 9000, 1000};
  GpuSpeedEstimate estimate;
  EXPECT_THAT(AddWindows(estimate, 20, TimesOf(tokens, {1, 1, 1, 1}), tokens), IsEmpty());
}

TEST(GpuSpeedEstimateTest, OneBadWindowNamesNoGpu) {
  const std::vector<double> tokens(4, 10000);
  GpuSpeedEstimate estimate;
  for (int window = 0; window < 30; ++window) {
    const double speed = window % 4 == 0 ? 0.3 : 1;
    EXPECT_THAT(estimate.AddWindow(TimesOf(tokens, {1, speed, 1, 1}), tokens), IsEmpty());
  }
}

TEST(GpuSpeedEstimateTest, WorkThatDoesNotGrowWithTokensIsFound) {
  // Without it the GPUs with few tokens would look slow: 6 ms of 16 are the same for all.
  std::vector<double> tokens;
  for (int gpu = 0; gpu < 16; ++gpu) tokens.push_back(5000 + 700 * gpu);
  std::vector<double> speeds(16, 1);
  speeds[4] = 0.75;
  GpuSpeedEstimate estimate;
  const auto changes = AddWindows(estimate, kEnough, TimesOf(tokens, speeds, 0.006), tokens);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].gpu, 4);
  EXPECT_NEAR(changes[0].after, 0.75, 0.011);
  EXPECT_NEAR(estimate.fixed_part(), 6 / 16.25, 0.01);
  EXPECT_THAT(SpeedSentence(estimate, estimate.slow()[0]), HasSubstr("% fixed work"));
}

TEST(GpuSpeedEstimateTest, AGpuKeepsItsSpeedWhenItGetsFewerTokens) {
  std::vector<double> tokens(8, 10000);
  const std::vector<double> speeds = {1, 1, 1, 0.6, 1, 1, 1, 1};
  GpuSpeedEstimate estimate;
  AddWindows(estimate, kEnough, TimesOf(tokens, speeds), tokens);
  tokens[3] = 6000;  // result of a decision with speeds: all steps take equally long
  EXPECT_THAT(AddWindows(estimate, 20, TimesOf(tokens, speeds), tokens), IsEmpty());
  EXPECT_EQ(estimate.slow(), (std::vector<wire::StatedSpeed>{{3, 0.6}}));
}

TEST(GpuSpeedEstimateTest, ItsSpeedIsBoundedAndFollowsOnlyWhatIsLarge) {
  const std::vector<double> tokens(4, 10000);
  GpuSpeedEstimate estimate;
  AddWindows(estimate, kEnough, TimesOf(tokens, {0.1, 1, 1, 3}), tokens);
  EXPECT_EQ(estimate.slow(), (std::vector<wire::StatedSpeed>{{0, 0.5}})) << "and none is fast";
  EXPECT_THAT(SpeedSentence(estimate, estimate.slow()[0]), HasSubstr("no GPU is named slower"));
  AddWindows(estimate, kEnough, TimesOf(tokens, {0.6, 1, 1, 1}), tokens);
  EXPECT_EQ(estimate.slow()[0].speed, 0.6);
  EXPECT_THAT(AddWindows(estimate, kEnough, TimesOf(tokens, {0.62, 1, 1, 1}), tokens), IsEmpty());
  AddWindows(estimate, kEnough, TimesOf(tokens, {0.93, 1, 1, 1}), tokens);
  EXPECT_EQ(estimate.slow()[0].speed, 0.93) << "slow until it is at 0.95";
  const auto changes = AddWindows(estimate, kEnough, TimesOf(tokens, {0.96, 1, 1, 1}), tokens);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].after, 1);
  EXPECT_THAT(estimate.slow(), IsEmpty());
}

TEST(GpuSpeedEstimateTest, WindowsOfFewGpusTellNothing) {
  const std::vector<double> tokens(4, 10000);
  GpuSpeedEstimate estimate;
  EXPECT_THAT(AddWindows(estimate, 20, {0.01, 0, 0, 0}, tokens), IsEmpty());
  EXPECT_THAT(AddWindows(estimate, 20, {0.01, 0.02, 0.01, 0.01}, {0, 0, 0, 0}), IsEmpty());
  // A GPU without times is left out; the others are still compared.
  AddWindows(estimate, kEnough, {0.01, 0.02, 0, 0.01}, tokens);
  EXPECT_EQ(estimate.slow(), (std::vector<wire::StatedSpeed>{{1, 0.5}}));
}

TEST(GpuSpeedEstimateTest, AnotherDaemonsNamesStayUntilEnoughWindowsAreThere) {
  const std::vector<double> tokens(4, 10000);
  GpuSpeedEstimate estimate = GpuSpeedEstimate::Continue({{1, 0.7}});
  EXPECT_THAT(SpeedSentence(estimate, {1, 0.7}), HasSubstr("before this daemon started"));
  AddWindows(estimate, kEnough - 1, TimesOf(tokens, {1, 1, 1, 1}), tokens);
  EXPECT_EQ(estimate.slow().size(), 1u);
  AddWindows(estimate, 1, TimesOf(tokens, {1, 1, 1, 1}), tokens);
  EXPECT_THAT(estimate.slow(), IsEmpty());
}

TEST(GpuSpeedEstimateTest, NoiseOfATenthNamesNoGpuAndHidesNone) {
  std::mt19937 random(7);
  const auto draw = [&random](double low, double high) {
    return low + (high - low) * static_cast<double>(random()) / 4294967296.0;
  };
  std::vector<double> speeds(32, 1);
  speeds[9] = 0.7;
  GpuSpeedEstimate estimate;
  for (int window = 0; window < 60; ++window) {
    std::vector<double> tokens;
    for (int gpu = 0; gpu < 32; ++gpu) tokens.push_back(draw(6000, 14000));
    std::vector<double> seconds = TimesOf(tokens, speeds, 0.002);
    for (double& one : seconds) one *= draw(0.95, 1.05);
    estimate.AddWindow(seconds, tokens);
    if (window < kEnough) continue;
    ASSERT_EQ(estimate.slow().size(), 1u) << "window " << window;
    EXPECT_EQ(estimate.slow()[0].gpu, 9);
    EXPECT_NEAR(estimate.slow()[0].speed, 0.7, 0.07);
  }
}

}  // namespace
}  // namespace eplb::core
