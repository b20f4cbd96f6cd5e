#include <gtest/gtest.h>

#include "client/cli/run_review.h"
#include "tests/client/cli/small_run.h"

namespace eplb::cli {

namespace {

TEST(RunOperatorsTest, WithoutEventsEveryStepIsDecided) {
  const RunDirectory run = SmallRun({});
  const OperatorReview review = ReviewOperators(run.report, std::nullopt);
  EXPECT_TRUE(review.changes.actions().empty());
  EXPECT_TRUE(review.changes.held_back().empty());
  EXPECT_EQ(review.decided, std::vector<bool>(kSmallSteps, true));
}

TEST(RunOperatorsTest, APauseHoldsTheStepsAfterItBackUntilTheResume) {
  const RunDirectory run = SmallRun({});
  const LoggedEvents events{"demo", {EventAt(run, 2, "pause"), EventAt(run, 6, "resume")}};
  const OperatorReview review = ReviewOperators(run.report, events);
  ASSERT_EQ(review.changes.actions_size(), 2);
  EXPECT_EQ(review.changes.actions(0).step(), 2);
  EXPECT_EQ(review.changes.actions(0).actor(), "uid 1000 (alice)");
  ASSERT_EQ(review.changes.held_back_size(), 1);
  EXPECT_EQ(review.changes.held_back(0).first_step(), 3);
  EXPECT_EQ(review.changes.held_back(0).last_step(), 6);
  EXPECT_EQ(review.changes.held_back(0).why(), "paused");
  EXPECT_TRUE(review.decided[2]);
  EXPECT_FALSE(review.decided[3]);
  EXPECT_FALSE(review.decided[6]);
  EXPECT_TRUE(review.decided[7]);
}

TEST(RunOperatorsTest, ARollbackAndTheModeObserveHoldBackToo) {
  const RunDirectory run = SmallRun({});
  LoggedEvent observe = EventAt(run, 1, "set_policy");
  observe.before = "mode=apply every_steps=50";
  observe.after = "mode=observe every_steps=20";
  const LoggedEvents events{"demo", {observe, EventAt(run, 8, "rollback")}};
  const OperatorReview review = ReviewOperators(run.report, events);
  ASSERT_EQ(review.changes.held_back_size(), 2);
  EXPECT_EQ(review.changes.held_back(0).why(), "observed only");
  EXPECT_EQ(review.changes.held_back(0).first_step(), 2);
  EXPECT_EQ(review.changes.held_back(0).last_step(), 8);
  EXPECT_EQ(review.changes.held_back(1).why(), "paused");
  EXPECT_EQ(review.changes.held_back(1).last_step(), kSmallSteps - 1);
  EXPECT_EQ(review.changes.actions(0).after(), "mode=observe every_steps=20");
}

TEST(RunOperatorsTest, WhatWasInForceBeforeTheRunHoldsItBackAndIsNoRow) {
  const RunDirectory run = SmallRun({});
  LoggedEvent before = EventAt(run, 0, "pause");
  before.unix_micros = static_cast<int64_t>((kSmallBegan - 60) * 1e6);
  const LoggedEvents paused{"demo", {before}};
  EXPECT_EQ(ReviewOperators(run.report, paused).decided, std::vector<bool>(kSmallSteps, false));
  EXPECT_TRUE(ReviewOperators(run.report, paused).changes.actions().empty());
  LoggedEvent resume = EventAt(run, 4, "resume");  // the pause itself was cut from the log
  resume.before = "paused: paused by bob";
  const OperatorReview review = ReviewOperators(run.report, LoggedEvents{"demo", {resume}});
  ASSERT_EQ(review.changes.held_back_size(), 1);
  EXPECT_EQ(review.changes.held_back(0).first_step(), 0);
  EXPECT_EQ(review.changes.held_back(0).last_step(), 4);
}

TEST(RunOperatorsTest, ARollbackTellsWhatWasInForceBeforeIt) {
  const RunDirectory run = SmallRun({});
  LoggedEvent rollback = EventAt(run, 4, "rollback");
  rollback.before = "version 3, not paused";
  LoggedEvent resume = EventAt(run, 7, "resume");
  resume.before = "paused: rolled back";
  OperatorReview review = ReviewOperators(run.report, LoggedEvents{"demo", {rollback, resume}});
  ASSERT_EQ(review.changes.held_back_size(), 1);
  EXPECT_EQ(review.changes.held_back(0).first_step(), 5);
  EXPECT_EQ(review.changes.held_back(0).last_step(), 7);
  rollback.before = "version 3, paused: paused by bob";
  review = ReviewOperators(run.report, LoggedEvents{"demo", {rollback, resume}});
  ASSERT_EQ(review.changes.held_back_size(), 1);
  EXPECT_EQ(review.changes.held_back(0).first_step(), 0);
  EXPECT_EQ(review.changes.held_back(0).last_step(), 7);
}

TEST(RunOperatorsTest, WhatTheDaemonDidAndWhatWasRefusedIsNoAction) {
  const RunDirectory run = SmallRun({});
  const LoggedEvents events{
      "demo", {EventAt(run, 2, "committed"), EventAt(run, 3, "refused"), EventAt(run, 4, "kept")}};
  EXPECT_TRUE(ReviewOperators(run.report, events).changes.actions().empty());
}

}  // namespace

}  // namespace eplb::cli
