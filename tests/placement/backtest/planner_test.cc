#include "placement/backtest/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "placement/split/batch_split.h"
#include "tests/placement/backtest/loads.h"

namespace eplb {
namespace {

using ::testing::IsEmpty;

// A planner with the windows of its job.
struct PlannedJob {
  explicit PlannedJob(const BacktestOptions& options = {}, double price = 1e-2)
      : question{.num_fresh = 1, .costs = PricedAt(price), .options = options} {}

  // Asks after one more window.
  std::optional<PlannerAnswer> AfterWindow(int32_t hot, const Placement& incumbent,
                                           bool now = false) {
    question.windows.push_back(HotWindow(hot));
    question.now = now;
    PlannerOutcome outcome = AskPlanner(question, incumbent).value();
    question.state = std::move(outcome.state);
    return std::move(outcome.answer);
  }

  PlannerQuestion question;
};

PlannerQuestion QuestionOn(std::vector<SeenWindow> windows, const Costs& costs = PricedAt(1e-2)) {
  const auto fresh = std::ssize(windows);
  return {.windows = std::move(windows), .num_fresh = fresh, .costs = costs};
}

double PeakOf(const Placement& placement, int32_t hot) {
  return EvaluateSplit(*HotWindow(hot).load, placement, SplitMode::kEqual)->peak_load;
}

TEST(PlannerTest, WithoutAWindowThereIsNoDecision) {
  const PlannerOutcome outcome = AskPlanner({.now = true}, StartOfJob()).value();
  EXPECT_FALSE(outcome.answer.has_value());
  EXPECT_THAT(BacktestText(outcome.state->backtest), IsEmpty());
}

TEST(PlannerTest, AChangeWaitsForItsCadence) {
  PlannedJob job({.every = 3});
  Placement incumbent = StartOfJob();
  const std::optional<PlannerAnswer> first = job.AfterWindow(0, incumbent);
  ASSERT_TRUE(first.has_value());
  ASSERT_EQ(first->candidate.cadence, 1);
  incumbent = first->placement;
  EXPECT_FALSE(job.AfterWindow(0, incumbent).has_value());
  EXPECT_FALSE(job.AfterWindow(0, incumbent).has_value());
  EXPECT_TRUE(job.AfterWindow(0, incumbent).has_value());
  EXPECT_FALSE(job.AfterWindow(0, incumbent).has_value());
  EXPECT_TRUE(job.AfterWindow(0, incumbent, true).has_value()) << "asked for";
}

TEST(PlannerTest, AJobDecidesWhenTheCandidateDoesThatItFollows) {
  PlannedJob job({.candidates = {{"incremental"}, {"balanced"}}, .every = 2});
  const Placement start = StartOfJob();
  EXPECT_TRUE(job.AfterWindow(0, start).has_value());
  EXPECT_TRUE(job.AfterWindow(0, start, true).has_value()) << "asked for, and out of phase";
  EXPECT_TRUE(job.AfterWindow(0, start).has_value()) << "the candidates decide at windows 1, 3, 5";
  EXPECT_FALSE(job.AfterWindow(0, start).has_value());
}

TEST(PlannerTest, EqualQuestionsHaveEqualAnswersAndLeaveTheStateAsItIs) {
  const Placement start = StartOfJob();
  PlannerQuestion question = QuestionOn({HotWindow(0), HotWindow(2), HotWindow(3)});
  const PlannerOutcome first = AskPlanner(question, start).value();
  const PlannerOutcome again = AskPlanner(question, start).value();
  ASSERT_TRUE(first.answer.has_value());
  ASSERT_TRUE(again.answer.has_value());
  EXPECT_EQ(first.answer->placement, again.answer->placement);
  EXPECT_EQ(first.answer->candidate, again.answer->candidate);
  EXPECT_EQ(first.answer->gate->shown.realized, again.answer->gate->shown.realized);
  EXPECT_EQ(BacktestText(first.state->backtest), BacktestText(again.state->backtest));

  question.state = first.state;
  question.windows.push_back(HotWindow(4));
  question.num_fresh = 1;
  question.now = true;
  const PlannerOutcome next = AskPlanner(question, start).value();
  EXPECT_EQ(first.state->backtest.num_windows(), 3);
  EXPECT_EQ(next.state->backtest.num_windows(), 4);
  EXPECT_EQ(AskPlanner(question, start)->answer->placement, next.answer->placement);
}

TEST(PlannerTest, TheNewestIntervalHoldsAndAnotherHierarchyBeginsAnew) {
  const Placement start = StartOfJob();
  PlannerQuestion question = QuestionOn({HotWindow(0), HotWindow(0), HotWindow(0)});
  question.options.every = 9;
  question.state = AskPlanner(question, start)->state;
  question.windows.push_back(HotWindow(0));
  question.num_fresh = 1;
  PlannerOutcome outcome = AskPlanner(question, start).value();
  EXPECT_FALSE(outcome.answer.has_value());
  question.options.every = 1;
  outcome = AskPlanner(question, start).value();
  EXPECT_TRUE(outcome.answer.has_value());
  EXPECT_EQ(outcome.state->backtest.num_windows(), 4);
  question.state = outcome.state;
  question.options.every = 9;
  EXPECT_GT(AskPlanner(question, start)->state->backtest.gate().horizon_steps,
            outcome.answer->gate->horizon_steps);
  question.options.policy.hierarchy = Hierarchy::kNone;
  EXPECT_EQ(AskPlanner(question, start)->state->backtest.num_windows(), 1);
}

TEST(PlannerTest, SecondsAreCountedFromTheFirstPricesOnAndTheLastOnesStay) {
  const Placement start = StartOfJob();
  PlannerQuestion question = QuestionOn({HotWindow(0), HotWindow(2), HotWindow(3)}, {});
  question.state = AskPlanner(question, start)->state;
  const auto most = [&question] {
    double seconds = 0;
    for (const CandidateScore& one : question.state->backtest.Scores()) {
      seconds = std::max(seconds, std::abs(one.saved_seconds));
    }
    return seconds;
  };
  EXPECT_GT(most(), 100) << "tokens";
  question.windows = {HotWindow(0), HotWindow(0), HotWindow(0)};
  question.num_fresh = 3;
  question.costs = PricedAt(1e-2);
  question.state = AskPlanner(question, start)->state;
  EXPECT_EQ(question.state->backtest.num_windows(), 3);
  question.windows.push_back(HotWindow(0));
  question.num_fresh = 1;
  question.costs = {};
  question.state = AskPlanner(question, start)->state;
  EXPECT_EQ(question.state->backtest.num_windows(), 4);
  EXPECT_GT(most(), 0);
  EXPECT_LT(most(), 100) << "seconds";
}

// A fixed policy: the one candidate that estimates by the sum of two windows.
BacktestOptions Alone(const std::string& policy) {
  return {.candidates = {{.policy = policy, .estimate = {.windows = 2}}}, .every = 2};
}

TEST(PlannerTest, ASinglePolicyWithoutPricesNeedsNoBackTest) {
  PlannerQuestion question = QuestionOn({HotWindow(8), HotWindow(0), HotWindow(0)}, {});
  question.options = Alone("incremental");
  question.num_fresh = 2;
  const PlannerOutcome outcome = AskPlanner(question, StartOfJob()).value();
  ASSERT_TRUE(outcome.answer.has_value());
  EXPECT_FALSE(outcome.answer->gate.has_value());
  EXPECT_EQ(outcome.answer->expected.recent.size(), 2u);
  EXPECT_LT(PeakOf(outcome.answer->placement, 0), PeakOf(StartOfJob(), 0));
  EXPECT_EQ(outcome.state->backtest.num_windows(), 0);
}

TEST(PlannerTest, ASinglePolicyIsABackTestOfOneCandidate) {
  PlannedJob job(Alone("balanced"), 1e-1);
  std::optional<PlannerAnswer> answer = job.AfterWindow(0, StartOfJob());
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->gate->times, 4);
  EXPECT_FALSE(job.AfterWindow(0, StartOfJob()).has_value()) << "it decides at every 2nd window";
  for (int t = 0; t < 4; ++t) answer = job.AfterWindow(0, StartOfJob(), true);
  EXPECT_TRUE(answer->gate->in_use);
  EXPECT_EQ(answer->gate->times, 1);
  EXPECT_GT(answer->gate->shown.missed_seconds, 0);
  EXPECT_LT(answer->gate->budget_seconds, 1) << "a single candidate always has a budget";
  EXPECT_THAT(BacktestText(job.question.state->backtest), IsEmpty());

  job.question.options.candidates[0].estimate.windows = 3;
  job.AfterWindow(0, StartOfJob());
  EXPECT_EQ(job.question.state->backtest.num_windows(), 7) << "another interval goes on";
  job.question.options.candidates[0].policy = "incremental";
  job.AfterWindow(0, StartOfJob());
  EXPECT_EQ(job.question.state->backtest.num_windows(), 1) << "another policy begins anew";
}

TEST(PlannerTest, ABackTestThatBeginsAfterItsWindowsSeesTheNewestOne) {
  PlannerQuestion question = QuestionOn({HotWindow(0), HotWindow(0)});
  question.options = Alone("balanced");
  question.num_fresh = 0;
  const PlannerOutcome outcome = AskPlanner(question, StartOfJob()).value();
  EXPECT_EQ(outcome.state->backtest.num_windows(), 1);
  ASSERT_TRUE(outcome.answer.has_value());
  EXPECT_GT(outcome.answer->gate->horizon_steps, 0);
}

TEST(PlannerTest, APlacementThatLosesWhileNothingIsProvedGoesBackToTheStart) {
  PlannedJob job(Alone("balanced"), 1e3);  // no candidate ever moves
  const Placement worse = StartOfJob();
  const Placement start = PlannedJob().AfterWindow(8, worse)->placement;
  ASSERT_LT(PeakOf(start, 8), PeakOf(worse, 8));
  std::optional<PlannerAnswer> answer = job.AfterWindow(8, start);
  for (int t = 0; t < 6; ++t) answer = job.AfterWindow(8, worse, true);
  EXPECT_TRUE(answer->gate->returns);
  EXPECT_TRUE(answer->gate->in_use);
  EXPECT_EQ(answer->candidate, Candidate());
  EXPECT_DOUBLE_EQ(PeakOf(answer->placement, 8), PeakOf(start, 8));
  answer = job.AfterWindow(8, start, true);
  EXPECT_FALSE(answer->gate->returns) << "it is back";
  EXPECT_FALSE(answer->gate->in_use);
}

TEST(PlannerTest, AJobWhoseLoadsTakeLongTurnsIsPlacedForBothFromItsHistory) {
  PlannedJob job({.candidates = {{"incremental", {.windows = 8, .as_scenarios = true}}}}, 1e-6);
  Placement incumbent = StartOfJob();
  for (const int32_t hot : {0, 8, 0}) {
    for (int window = 0; window < 20; ++window) {
      std::optional<PlannerAnswer> answer = job.AfterWindow(hot, incumbent);
      ASSERT_TRUE(answer.has_value());
      incumbent = std::move(answer->placement);
    }
  }
  const PlannerAnswer later = job.AfterWindow(0, incumbent).value();
  EXPECT_EQ(later.placement, incumbent) << "nothing is moved";
  ASSERT_EQ(later.expected.scenarios.size(), kMaxTypicalLoads);
  const double even = HotWindow(0).load->ToDouble().sum() / 4;
  EXPECT_LT(PeakOf(incumbent, 0), 1.15 * even);
  EXPECT_LT(PeakOf(incumbent, 8), 1.15 * even) << "20 windows ago";

  // A planner without a state goes on from the history that it is given.
  PlannedJob restarted(job.question.options, 1e-6);
  restarted.question.history = job.question.state->history;
  const PlannerAnswer first = restarted.AfterWindow(0, incumbent).value();
  EXPECT_EQ(first.placement, incumbent);
  EXPECT_EQ(first.expected.scenarios.size(), kMaxTypicalLoads);
}

}  // namespace
}  // namespace eplb
