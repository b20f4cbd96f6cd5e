#include "placement/backtest/candidate.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "placement/policies/registry.h"

namespace eplb {
namespace {

SeenWindow Window(int64_t tokens, int64_t num_steps = 10) {
  return {
      std::make_shared<const Load>(Load::FromCounts(LoadMatrix::Constant(1, 2, tokens)).value()),
      num_steps};
}

TEST(CandidateTest, EveryPolicyThatIsTriedHasTheSameEstimatesAndCadences) {
  const std::vector<std::string> tried = {"last/1",   "last/2",   "last/4",     "ema/1",
                                          "sum/1",    "sum/2",    "sum/4",      "trend/1",
                                          "kalman/1", "kalman/4", "scenarios/1"};
  for (const SplitMode split : {SplitMode::kEqual, SplitMode::kBatch}) {
    const auto candidates = CandidatesFor(split);
    ASSERT_EQ(candidates.size(), 2 * tried.size()) << "two policies";
    for (size_t i = 0; i < candidates.size(); ++i) {
      EXPECT_FALSE(TraitsOf(candidates[i].policy).chooses);
      EXPECT_EQ(NameOf(candidates[i]), candidates[i].policy + "/" + tried[i % tried.size()]);
      EXPECT_LE(candidates[i].estimate.windows, kAutoWindows);
    }
    const PolicyTraits first = TraitsOf(candidates.front().policy);
    EXPECT_EQ(split == SplitMode::kBatch ? first.tried_for_batch : first.tried_for_equal,
              TriedFor::kFirst);
  }
}

TEST(CandidateTest, NamesAreShortAndTextsAreSentences) {
  const Candidate candidate{"incremental", {4, 0.5}, 2};
  EXPECT_EQ(NameOf(candidate), "incremental/ema/2");
  EXPECT_EQ(TextOf(candidate),
            "incremental on an average that halves with each window, at every 2nd opportunity");
  EXPECT_EQ(TextOf({"flow", {2, std::nullopt, Forecasting::kTrend}, 1}),
            "flow on the trend of the last two windows, at every opportunity");
  EXPECT_EQ(TextOf({"flow", {.windows = 8, .as_scenarios = true}, 1}),
            "flow on the typical loads of the job, each as a scenario, at every opportunity");
  EXPECT_EQ(NameOf(Candidate()), "none");
  EXPECT_EQ(TextOf(Candidate()), "do nothing");
}

TEST(CandidateTest, EstimatesLookAtTheNewestWindows) {
  const SeenWindow windows[] = {Window(100), Window(1), Window(2), Window(3), Window(8)};
  const auto cell = [&](const LoadEstimate& estimate) {
    return ExpectLoad(estimate, windows).value().load.ToDouble()(0, 0);
  };
  EXPECT_EQ(cell({1}), 8);
  EXPECT_EQ(cell({4}), 1 + 2 + 3 + 8);
  EXPECT_EQ(cell({4, 0.5}), ((1 * 0.5 + 2 * 0.5) * 0.5 + 3 * 0.5) * 0.5 + 8 * 0.5);
  EXPECT_EQ(ExpectLoad({4}, windows)->num_steps, 40);
  EXPECT_EQ(ExpectLoad({1}, windows)->recent.size(), 1u);
  // A forecast stands for one window, the newest.
  const ExpectedLoad trend = ExpectLoad({2, std::nullopt, Forecasting::kTrend}, windows).value();
  EXPECT_EQ(trend.load, *windows[4].load) << "both experts have half of the tokens";
  EXPECT_EQ(trend.recent.size(), 1u);
  EXPECT_EQ(trend.num_windows, 2);
  EXPECT_EQ(trend.StepsFor(SplitMode::kBatch), 10);
  EXPECT_EQ(ExpectLoad({8, std::nullopt, Forecasting::kKalman}, windows)->num_windows, 5);
  const SeenWindow gap[] = {Window(10, 5), Window(10, 5), Window(200, 100)};
  EXPECT_EQ(ExpectLoad({4}, gap)->recent_steps, 110);
  EXPECT_EQ(ExpectLoad({1}, gap)->recent_steps, 100);
}

TEST(CandidateTest, ScenariosAreTheTypicalLoadsByTheWindowsThatTheyStandFor) {
  const LoadEstimate estimate{.windows = 4, .as_scenarios = true};
  const SeenWindow windows[] = {Window(7), Window(100), Window(2), Window(8)};
  const TypicalLoad history[] = {{.load = Window(6).load, .num_steps = 10, .num_windows = 20},
                                 {.load = Window(8).load, .num_steps = 30, .num_windows = 0.5}};
  const ExpectedLoad expected = ExpectLoad(estimate, windows, history).value();
  ASSERT_EQ(expected.scenarios.size(), 2u);
  EXPECT_EQ(expected.scenarios.back().load, *history[1].load);
  EXPECT_EQ(expected.scenarios.back().weight, 0.5);
  EXPECT_EQ(expected.load.ToDouble()(0, 0), 6 * 20 + 8 * 0.5) << "the sum, with all their tokens";
  EXPECT_EQ(expected.Each(SplitMode::kEqual).size(), 2u) << "each has a peak of its own";
  EXPECT_EQ(expected.StepsFor(SplitMode::kEqual), 20 * 10 + 0.5 * 30);
  EXPECT_EQ(expected.num_windows, 4) << "newest windows, which the history holds";
  const ExpectedLoad one = ExpectLoad(estimate, windows, std::span(history).first(1)).value();
  EXPECT_TRUE(one.scenarios.empty()) << "one load is no scenario beside others";
  EXPECT_TRUE(one.Each(SplitMode::kEqual).empty());
  EXPECT_EQ(ExpectLoad({4}, windows, history)->scenarios.size(), 0u) << "of another candidate";
}

}  // namespace
}  // namespace eplb
