// The time of a token from samples of step times, and an account over runs.
#include "server/core/values/account.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_format.h"

namespace eplb::core {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using Source = TokenTime::Source;

constexpr double kFixed = 0.1;    // seconds of a step without experts
constexpr double kSlope = 2e-6;   // seconds of a token on the fullest GPU
constexpr double kOthers = 1e-6;  // seconds of all other work on a token

struct Noise {
  double seconds = 0;      // standard deviation of a window's step time
  double tokens = 0;       // standard deviation of the tokens of a step, a fraction
  double imbalance = 0.1;  // standard deviation of peak / mean
};

// Windows of 50 steps with 100,000 tokens on the mean GPU.
wire::SavedTime SumsOf(int windows, const Noise& noise, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  StepMean before;
  wire::SavedTime sums;
  for (int i = 0; i < windows; ++i) {
    const double mean = 100'000 * (1 + noise.tokens * normal(random));
    const double peak = mean * (1.4 + noise.imbalance * normal(random));
    const double seconds = kFixed + kSlope * peak + kOthers * mean + noise.seconds * normal(random);
    sums.peak_tokens += 50 * peak;
    sums.steps += 50;
    sums.step_seconds += 50 * (kFixed + (1.4 * kSlope + kOthers) * 100'000);
    AddSample({.steps = 50, .seconds = seconds, .peak_tokens = peak, .mean_tokens = mean}, before,
              sums);
  }
  return sums;
}

TEST(TokenTimeTest, IsTheSlopeOfTheStepTimeOverTheTokensOfTheFullestGpus) {
  const TokenTime time = TokenTimeOf(SumsOf(20, {}));
  EXPECT_EQ(time.source, Source::kMeasured);
  EXPECT_NEAR(time.seconds, kSlope, 1e-12);
  EXPECT_NEAR(time.error, 0, 1e-6);
}

TEST(TokenTimeTest, WorkThatGrowsWithAllTokensIsNotTakenForThatOfExperts) {
  const TokenTime time = TokenTimeOf(SumsOf(40, {.tokens = 0.05}));
  EXPECT_EQ(time.source, Source::kMeasured);
  EXPECT_NEAR(time.seconds, kSlope, 1e-12);
}

TEST(TokenTimeTest, TheErrorCoversTheTruthInMostOfManyRuns) {
  int held = 0;
  constexpr int kRuns = 200;
  for (uint32_t seed = 0; seed < kRuns; ++seed) {
    const TokenTime time = TokenTimeOf(SumsOf(60, {.seconds = 0.01, .tokens = 0.02}, seed));
    ASSERT_EQ(time.source, Source::kMeasured) << seed;
    if (std::abs(time.seconds - kSlope) <= time.error * time.seconds) ++held;
  }
  EXPECT_GE(held, kRuns * 85 / 100);
}

TEST(TokenTimeTest, StepTimesThatDoNotShowItLeaveTheAssumption) {
  for (const Noise& noise :
       {Noise{.seconds = 0.1, .imbalance = 0.001}, Noise{.seconds = 0.1, .imbalance = 0},
        Noise{.tokens = 0.1, .imbalance = 0}}) {
    const wire::SavedTime sums = SumsOf(20, noise);
    const TokenTime time = TokenTimeOf(sums);
    EXPECT_EQ(time.source, Source::kAssumed);
    EXPECT_NEAR(time.seconds / (0.5 * sums.step_seconds / sums.peak_tokens), 1, 0.01);
    EXPECT_THAT(TokenTimeText(sums),
                HasSubstr(" %, which assumes that experts take half of a step"));
  }
  EXPECT_EQ(TokenTimeOf(SumsOf(5, {})).source, Source::kAssumed) << "too few windows";
}

// Four windows without noise are not enough for a slope, and twelve of them are certain of it.
TEST(TokenTimeTest, TheBasisHasTheSharesThatThePriceIsMadeOf) {
  EXPECT_THAT(TokenTimeText(SumsOf(4, {})), HasSubstr(" us +- 100 %, which assumes that"));
  EXPECT_THAT(TokenTimeText(SumsOf(13, {})),
              EndsWith("measured from the step times of 12 windows"));
  EXPECT_THAT(TokenTimeText(SumsOf(13, {.seconds = 1})), HasSubstr(" +- above 100 %, "));
  const wire::SavedTime sums = SumsOf(13, {.seconds = 0.02});
  const TokenTime time = TokenTimeOf(sums);
  const double assumed = 0.5 * sums.step_seconds / sums.peak_tokens;
  ASSERT_GT(time.assumption, 0.05);
  ASSERT_LT(time.assumption, 0.95);
  EXPECT_THAT(
      TokenTimeText(sums),
      EndsWith(absl::StrFormat(" +- %.0f %%, %.0f %% from the step times of 12 windows and "
                               "%.0f %% from the assumption that experts take half of a step",
                               std::ceil(100 * time.error), 100 * (1 - time.assumption),
                               100 * time.assumption)));
  EXPECT_GT(time.error * time.seconds, time.assumption * assumed)
      << "which may be wrong as a whole";
}

// Experts are all of a step, or none of it: the assumption is as wrong as it can be.
TEST(TokenTimeTest, TheErrorCoversTheTruthAlsoWhereTheAssumptionIsWrong) {
  for (const double whole : {kSlope, 1000 * kSlope}) {
    int held = 0;
    constexpr int kRuns = 200;
    for (uint32_t seed = 0; seed < kRuns; ++seed) {
      wire::SavedTime sums = SumsOf(20, {.seconds = 0.03}, seed);
      sums.step_seconds = whole * sums.peak_tokens;
      const TokenTime time = TokenTimeOf(sums);
      if (std::abs(time.seconds - kSlope) <= time.error * time.seconds) ++held;
    }
    EXPECT_GE(held, kRuns * 90 / 100) << whole;
  }
}

TEST(TokenTimeTest, AGivenPriceReplacesWhatStepsShowAndNothingGivesNone) {
  wire::SavedTime sums = SumsOf(20, {});
  sums.token_seconds = 3e-6;
  EXPECT_EQ(TokenTimeOf(sums).source, Source::kGiven);
  EXPECT_EQ(TokenTimeText(sums), "a token costs 3 us, as cost.token_ns states");
  EXPECT_EQ(TokenTimeOf({}).source, Source::kNone);
}

TEST(TokenTimeTest, TokensNeverCostMoreThanTheWholeStep) {
  wire::SavedTime sums = SumsOf(20, {});
  sums.step_seconds /= 10;
  EXPECT_NEAR(TokenTimeOf(sums).seconds, sums.step_seconds / sums.peak_tokens, 1e-12);
}

TEST(TokenTimeTest, ThePriceDoesNotJumpWhenTheSlopeBecomesCertain) {
  int became_certain = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    TokenTime before = TokenTimeOf(SumsOf(12, {.seconds = 0.02}, seed));
    for (int windows = 13; windows < 60; ++windows) {
      const TokenTime time = TokenTimeOf(SumsOf(windows, {.seconds = 0.02}, seed));
      if (time.source != before.source) {
        ++became_certain;
        EXPECT_NEAR(time.seconds / before.seconds, 1, 0.35) << seed << ", window " << windows;
      }
      before = time;
    }
  }
  EXPECT_GT(became_certain, 5);
}

TEST(AccountTest, ARunsSavingsAreKeptInSecondsWhenTheNextOneBegins) {
  Account account{.windows = 20, .saved_peak_tokens = 1e6, .pause_seconds = 0.5};
  account.saved = SumsOf(20, {});
  account.saved.earlier_seconds = 3;
  EXPECT_NEAR(GrossSeconds(account), 5, 1e-6);
  CloseRun(account);
  EXPECT_NEAR(GrossSeconds(account), 5, 1e-6);
  EXPECT_FALSE(IsAssumed(account)) << "the slope was certain";
  EXPECT_EQ(account.pause_seconds, 0.5);
  EXPECT_EQ(account.windows, 0);
  EXPECT_EQ(account.saved.windows, 0) << "the next run may be of another model";
  account.saved_peak_tokens = 1;
  account.saved.peak_tokens = account.saved.step_seconds = 1;
  EXPECT_TRUE(IsAssumed(account));
  CloseRun(account);
  EXPECT_TRUE(IsAssumed(account)) << "the assumption stays in the sum";
}

TEST(AccountTest, PausesOfARunWithoutAPriceEndWithIt) {
  Account account{.windows = 20, .saved_peak_tokens = 1e6, .pause_seconds = 0.5};
  account.saved = SumsOf(20, {});
  CloseRun(account);
  account.pause_seconds += 0.25;
  EXPECT_EQ(CountedPauses(account), 0.5);
  account.saved.token_seconds = 1e-6;
  EXPECT_EQ(CountedPauses(account), 0.75);
  account.saved.token_seconds = 0;
  CloseRun(account);
  EXPECT_EQ(account.pause_seconds, 0.5);
}

}  // namespace
}  // namespace eplb::core
