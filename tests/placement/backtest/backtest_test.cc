#include "placement/backtest/backtest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/placement/backtest/loads.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

// One window after the other, `hot` by its number; the current placement stays.
Backtest RunOf(int windows, double price, const std::function<int32_t(int)>& hot,
               const BacktestOptions& options = {}) {
  Backtest backtest = Backtest::Begin(StartOfJob(), options).value();
  std::vector<SeenWindow> seen;
  for (int t = 0; t < windows; ++t) {
    seen.push_back(HotWindow(hot(t)));
    const Placement incumbent = StartOfJob();
    const Costs costs = PricedAt(price);
    EXPECT_TRUE(backtest.Advance({.windows = seen, .incumbent = incumbent, .costs = costs}).ok());
  }
  return backtest;
}

CandidateScore ScoreOf(const Backtest& backtest, const std::string& name) {
  for (const CandidateScore& score : backtest.Scores()) {
    if (NameOf(score.candidate) == name) return score;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(BacktestTest, NothingIsJudgedOnTheWindowThatItWasComputedFrom) {
  const Backtest one = RunOf(1, 1e-3, [](int) { return 0; });
  for (const CandidateScore& score : one.Scores()) EXPECT_EQ(score.saved_seconds, 0);
  const Backtest two = RunOf(2, 1e-3, [](int) { return 0; });
  EXPECT_GT(ScoreOf(two, "incremental/last/1").saved_seconds, 0);
  EXPECT_EQ(two.Scores().back().candidate, Candidate()) << "the last one does nothing";
  EXPECT_EQ(two.Scores().back().total(), 0);
}

TEST(BacktestTest, ALoadThatStaysIsWorthItsMigration) {
  const Backtest backtest = RunOf(6, 1e-2, [](int) { return 0; });
  ASSERT_TRUE(backtest.choice().has_value());
  EXPECT_TRUE(backtest.gate().in_use);
  EXPECT_GT(backtest.gate().shown.realized, 0.9);
  EXPECT_GT(backtest.gate().shown.missed_seconds, 0) << "the job itself did not move";
}

TEST(BacktestTest, OneLongWindowDoesNotStretchTheHorizon) {
  Backtest usual = Backtest::Begin(StartOfJob(), {}).value();
  Backtest gap = Backtest::Begin(StartOfJob(), {}).value();
  const Placement incumbent = StartOfJob();
  const Costs costs = PricedAt(1e-2);
  std::vector<SeenWindow> seen;
  for (int t = 0; t < 5; ++t) {
    seen.push_back(HotWindow(0));
    ASSERT_TRUE(usual.Advance({.windows = seen, .incumbent = incumbent, .costs = costs}).ok());
    if (t == 4) seen.back().num_steps = 1000;
    ASSERT_TRUE(gap.Advance({.windows = seen, .incumbent = incumbent, .costs = costs}).ok());
  }
  EXPECT_EQ(gap.gate().horizon_steps, usual.gate().horizon_steps);
}

TEST(BacktestTest, APriceThatNothingEarnsLeavesDoingNothing) {
  const Backtest backtest = RunOf(6, 1e3, [](int) { return 0; });
  EXPECT_FALSE(backtest.choice().has_value());
  EXPECT_FALSE(backtest.gate().in_use);
  for (const CandidateScore& score : backtest.Scores()) EXPECT_EQ(score.spent_seconds, 0);
}

TEST(BacktestTest, BeforeAnythingWasSeenAGainMustBeSeveralTimesItsPrice) {
  EXPECT_EQ(RunOf(1, 1e-2, [](int) { return 0; }).gate().times, 4);
  EXPECT_EQ(RunOf(2, 1e-2, [](int) { return 0; }).gate().times, 1);
}

TEST(BacktestTest, ACandidateDecidesAtItsCadence) {
  const Backtest backtest = RunOf(9, 1e-4, [](int t) { return t * 5 % 16; });
  const double each = ScoreOf(backtest, "balanced/last/1").spent_seconds;
  const double fourth = ScoreOf(backtest, "balanced/last/4").spent_seconds;
  EXPECT_GT(fourth, 0);
  EXPECT_GT(each, 2 * fourth);
}

TEST(BacktestTest, AnOpportunityMayBeSeveralWindows) {
  const auto hot = [](int t) { return t * 5 % 16; };
  EXPECT_GT(ScoreOf(RunOf(9, 1e-4, hot), "balanced/last/1").spent_seconds,
            ScoreOf(RunOf(9, 1e-4, hot, {.every = 4}), "balanced/last/1").spent_seconds);
}

TEST(BacktestTest, AShiftOfTheDomainIsPaidForOnce) {
  const Backtest backtest = RunOf(16, 1e-2, [](int t) { return t < 8 ? 0 : 8; });
  ASSERT_TRUE(backtest.choice().has_value());
  const CandidateScore chosen = backtest.Scores()[*backtest.choice()];
  EXPECT_GT(chosen.total(), 0);
  EXPECT_GT(chosen.balancedness, backtest.Scores().back().balancedness);
}

TEST(BacktestTest, WindowsWithoutTokensAreInNoMean) {
  Backtest backtest = Backtest::Begin(StartOfJob(), {}).value();
  const Placement incumbent = StartOfJob();
  const Costs costs = PricedAt(1e-2);
  SeenWindow idle = HotWindow(0);
  idle.load = std::make_shared<const Load>(
      *Load::FromCounts(LoadMatrix::Zero(idle.load->num_layers(), idle.load->num_experts())));
  std::vector<SeenWindow> seen;
  const auto advance = [&](SeenWindow window) {
    seen.push_back(std::move(window));
    return backtest.Advance({.windows = seen, .incumbent = incumbent, .costs = costs}).ok();
  };
  ASSERT_TRUE(advance(idle));
  EXPECT_EQ(backtest.Scores().back().balancedness, std::nullopt);
  ASSERT_TRUE(advance(HotWindow(0)));
  const std::optional<double> busy = backtest.Scores().back().balancedness;
  ASSERT_TRUE(busy.has_value());
  ASSERT_TRUE(advance(idle));
  EXPECT_EQ(backtest.Scores().back().balancedness, busy);
  EXPECT_LT(*busy, 1);
}

TEST(BacktestTest, WindowsOfAnotherShapeAreRefused) {
  Backtest backtest = Backtest::Begin(StartOfJob(), {}).value();
  const Placement start = StartOfJob();
  const Costs costs = PricedAt(1);
  const SeenWindow layers[] = {HotWindow(0, 1)};
  const SeenWindow experts[] = {HotWindow(0, 2, 17)};
  const absl::Status few =
      backtest.Advance({.windows = layers, .incumbent = start, .costs = costs});
  EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(few.message()), HasSubstr("fewer layers"));
  EXPECT_EQ(backtest.Advance({.windows = experts, .incumbent = start, .costs = costs}).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb
