#include "placement/backtest/auto_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "placement/split/batch_split.h"
#include "tests/placement/backtest/loads.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;
using testing::HotWindow;
using ::testing::IsEmpty;
using testing::PricedAt;
using testing::StartOfJob;

AutoState BeginPlanner(const BacktestOptions& options = {}) {
  return {.backtest = Backtest::Begin(StartOfJob(), options).value()};
}

// One window, and the answer.
std::optional<AutoAnswer> AfterWindow(AutoState& state, int32_t hot, const Placement& incumbent,
                                      double price = 1e-2, bool now = false) {
  const SeenWindow fresh = HotWindow(hot);
  const Costs costs = PricedAt(price);
  return PlanAuto({.fresh = {&fresh, 1}, .incumbent = incumbent, .costs = costs, .now = now}, state)
      .value();
}

double PeakOf(const Placement& placement, int32_t hot) {
  return EvaluateSplit(*HotWindow(hot).load, placement, SplitMode::kEqual)->peak_load;
}

TEST(AutoPlannerTest, WithoutAWindowThereIsNoDecision) {
  AutoState state = BeginPlanner();
  const Placement start = StartOfJob();
  const Costs costs;
  EXPECT_FALSE(
      PlanAuto({.fresh = {}, .incumbent = start, .costs = costs, .now = true}, state)->has_value());
  EXPECT_THAT(BacktestText(state.backtest), IsEmpty());
}

TEST(AutoPlannerTest, AChangeWaitsForItsCadence) {
  AutoState state = BeginPlanner({.every = 3});
  Placement incumbent = StartOfJob();
  const std::optional<AutoAnswer> first = AfterWindow(state, 0, incumbent);
  ASSERT_TRUE(first.has_value());
  ASSERT_EQ(first->candidate.cadence, 1);
  incumbent = first->placement;
  EXPECT_FALSE(AfterWindow(state, 0, incumbent).has_value());
  EXPECT_FALSE(AfterWindow(state, 0, incumbent).has_value());
  EXPECT_TRUE(AfterWindow(state, 0, incumbent).has_value());
  EXPECT_FALSE(AfterWindow(state, 0, incumbent).has_value());
  EXPECT_TRUE(AfterWindow(state, 0, incumbent, 1e-2, true).has_value()) << "asked for";
}

TEST(AutoPlannerTest, EqualQuestionsHaveEqualAnswersAndLeaveTheStateAsItIs) {
  const Placement start = StartOfJob();
  AutoQuestion question{.fresh = {HotWindow(0), HotWindow(2), HotWindow(3)},
                        .costs = PricedAt(1e-2)};
  const AutoOutcome first = AskAuto(question, start).value();
  const AutoOutcome again = AskAuto(question, start).value();
  ASSERT_TRUE(first.answer.has_value());
  ASSERT_TRUE(again.answer.has_value());
  EXPECT_EQ(first.answer->placement, again.answer->placement);
  EXPECT_EQ(first.answer->candidate, again.answer->candidate);
  EXPECT_EQ(first.answer->gate.realized, again.answer->gate.realized);
  EXPECT_EQ(BacktestText(first.state->backtest), BacktestText(again.state->backtest));

  question.state = first.state;
  question.fresh = {HotWindow(4)};
  question.now = true;
  const AutoOutcome next = AskAuto(question, start).value();
  EXPECT_EQ(first.state->backtest.num_windows(), 3);
  EXPECT_EQ(next.state->backtest.num_windows(), 4);
  EXPECT_EQ(AskAuto(question, start)->answer->placement, next.answer->placement);
}

TEST(AutoPlannerTest, AfterAShiftOfTheDomainTheAnswerFitsTheNewLoad) {
  AutoState state = BeginPlanner();
  Placement incumbent = StartOfJob();
  for (int t = 0; t < 20; ++t) {
    const int32_t hot = t < 10 ? 0 : 8;
    std::optional<AutoAnswer> answer = AfterWindow(state, hot, incumbent);
    if (answer.has_value()) incumbent = std::move(answer->placement);
    if (t == 9) {
      EXPECT_LT(PeakOf(incumbent, 0), PeakOf(StartOfJob(), 0));
    }
  }
  EXPECT_LT(PeakOf(incumbent, 8), PeakOf(StartOfJob(), 8));
  EXPECT_THAT(BacktestText(state.backtest), HasSubstr("over 20 windows"));
}

TEST(AutoPlannerTest, TheNewestIntervalHoldsAndAnotherHierarchyBeginsAnew) {
  const Placement start = StartOfJob();
  AutoQuestion question{.fresh = {HotWindow(0), HotWindow(0), HotWindow(0)},
                        .costs = PricedAt(1e-2),
                        .options = {.every = 9}};
  question.state = AskAuto(question, start)->state;
  question.fresh = {HotWindow(0)};
  AutoOutcome outcome = AskAuto(question, start).value();
  EXPECT_FALSE(outcome.answer.has_value());
  question.options.every = 1;
  outcome = AskAuto(question, start).value();
  EXPECT_TRUE(outcome.answer.has_value());
  EXPECT_EQ(outcome.state->backtest.num_windows(), 4);
  EXPECT_GT(AskAuto({.state = outcome.state,
                     .fresh = question.fresh,
                     .costs = question.costs,
                     .options = {.every = 9}},
                    start)
                ->state->backtest.gate()
                .horizon_steps,
            outcome.answer->gate.horizon_steps);
  question.state = outcome.state;
  question.options.hierarchy = Hierarchy::kNone;
  EXPECT_EQ(AskAuto(question, start)->state->backtest.num_windows(), 1);
}

TEST(AutoPlannerTest, SecondsAreCountedFromTheFirstPricesOnAndTheLastOnesStay) {
  const Placement start = StartOfJob();
  AutoQuestion question{.fresh = {HotWindow(0), HotWindow(2), HotWindow(3)}};
  question.state = AskAuto(question, start)->state;
  const auto most = [&question] {
    double seconds = 0;
    for (const CandidateScore& one : question.state->backtest.Scores()) {
      seconds = std::max(seconds, std::abs(one.saved_seconds));
    }
    return seconds;
  };
  EXPECT_GT(most(), 100) << "tokens";
  question.fresh = {HotWindow(0), HotWindow(0), HotWindow(0)};
  question.costs = PricedAt(1e-2);
  question.state = AskAuto(question, start)->state;
  EXPECT_EQ(question.state->backtest.num_windows(), 3);
  question.fresh = {HotWindow(0)};
  question.costs = {};
  question.state = AskAuto(question, start)->state;
  EXPECT_EQ(question.state->backtest.num_windows(), 4);
  EXPECT_GT(most(), 0);
  EXPECT_LT(most(), 100) << "seconds";
}

TEST(AutoPlannerTest, AWindowOfAnotherShapeIsRefused) {
  const Placement start = StartOfJob();
  const AutoQuestion question{.fresh = {HotWindow(0, 1)}, .costs = PricedAt(1)};
  const auto outcome = AskAuto(question, start);
  EXPECT_EQ(outcome.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace eplb
