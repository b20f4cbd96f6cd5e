// Policy `auto` in the core: what is asked, what follows from an answer, and its prices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "server/core/decisions/decide.h"
#include "server/core/solution.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Config AutoConfig(int32_t every_steps) {
  Config config = TestConfig();
  config.settings.policy = "auto";
  config.settings.every_steps = every_steps;
  config.costs.bandwidths = BandwidthSource::kAssumed;  // default of eplbd without a key for them
  return config;
}

// The solver of the daemon, at once.
void AnswerAuto(TestJob& job) {
  const std::optional<Solve> asked = job.daemon.pending_solve();
  if (!asked || job.daemon.state() != "SOLVING") return;
  Solved solved = AnswerSolve(*asked);
  solved.seconds = 0.001;
  job.daemon.Handle(std::move(solved));
}

// All ranks train and report window `number`, of 10 steps in `seconds`.
void TrainWindow(TestJob& job, int64_t number, double seconds = 1) {
  job.daemon.Advance(absl::Seconds(seconds));
  job.Report(10 * number, 10 * number + 9);
  AnswerAuto(job);
}

// All chunks that are proposed.
void SwitchAll(TestJob& job) { job.CommitAll(12); }

TEST(AutoDecisionsTest, AGainThatIsFarAboveItsPriceIsTakenAtTheFirstWindow) {
  ConnectedJob job(AutoConfig(10));
  TrainWindow(job, 0);
  const v1::Plan plan = job.NewestPlan();
  EXPECT_EQ(plan.policy(), "auto");
  EXPECT_EQ(plan.result(), v1::PLAN_RESULT_PROPOSED) << plan.reason();
  EXPECT_THAT(plan.reason(), HasSubstr("rebalance saves"));
  EXPECT_THAT(plan.reason(), HasSubstr("no earlier prediction to judge by"));
  ASSERT_GE(plan.candidates_size(), 19);
  EXPECT_TRUE(plan.candidates(0).in_use());
  EXPECT_EQ(plan.candidates().rbegin()->name(), "none");
  EXPECT_EQ(job.daemon.View().candidates_size(), plan.candidates_size());
}

// A write for each window would be too many.
TEST(AutoDecisionsTest, OfARowOfKeptDecisionsTheNewestIsStoredWhenTheRunEnds) {
  ConnectedJob job(AutoConfig(10));
  for (int64_t window = 0; window < 5; ++window) {
    wire::LoadReport report = TestReport(10 * window, 10 * window + 9);
    report.counts = LoadMatrix::Constant(4, 6, 100);
    job.SayAll(report);
    AnswerAuto(job);
  }
  const v1::Plan newest = job.NewestPlan();
  ASSERT_EQ(newest.result(), v1::PLAN_RESULT_KEPT);
  ASSERT_EQ(newest.decided_last_step(), 49u);
  EXPECT_LT(job.daemon.plans().at(1).decided_last_step(), 49u);
  job.FinishAll();
  EXPECT_EQ(job.daemon.plans().at(1), newest);
}

// The parameter is the price of a token: configured, or 0 to measure it from the time of a step.
class MeasuredBandwidthTest : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(TokenSeconds, MeasuredBandwidthTest, ::testing::Values(0.0, 1e-3));

TEST_P(MeasuredBandwidthTest, AMigrationHasNoPriceInSecondsBeforeASwitchWasMeasured) {
  Config config = AutoConfig(10);
  config.costs.token_seconds = GetParam();
  ConnectedJob job(config);
  TrainWindow(job, 0);
  EXPECT_THAT(job.NewestPlan().reason(),
              HasSubstr("(not measured yet; estimated from its bytes at 450 GB/s: under 1 ms)"));
  EXPECT_FALSE(job.NewestPlan().has_migration_seconds());
  EXPECT_FALSE(job.NewestPlan().has_net_gain_seconds());
  EXPECT_FALSE(job.daemon.View().candidates(0).has_net_seconds());
  EXPECT_FALSE(job.daemon.View().candidates(0).has_realized()) << "none was compared";
  SwitchAll(job);
  LoadMatrix turned = TestReport(0, 9).counts.rowwise().reverse();
  for (int64_t number = 2;
       job.NewestPlan().plan() == 1 || !job.NewestPlan().has_migration_seconds(); ++number) {
    ASSERT_LT(number, 20) << job.NewestPlan().reason();
    job.daemon.Advance(absl::Seconds(1));
    for (const FakeRank& rank : job.ranks) {
      wire::LoadReport report = TestReport(10 * number, 10 * number + 9);
      report.counts = turned;
      job.daemon.Say(rank.session, report);
    }
    AnswerAuto(job);
  }
  EXPECT_TRUE(job.NewestPlan().has_net_gain_seconds());
  EXPECT_THAT(job.NewestPlan().reason(), HasSubstr(" of migration"));
  EXPECT_THAT(job.NewestPlan().reason(), Not(HasSubstr("not measured yet")));
}

TEST(AutoDecisionsTest, AWindowWithoutADecisionLeavesNoPlan) {
  ConnectedJob job(AutoConfig(30));
  TrainWindow(job, 0);
  SwitchAll(job);
  const uint64_t plans = job.NewestPlan().plan();
  const int64_t solves = job.daemon.num_solves();
  TrainWindow(job, 1);
  TrainWindow(job, 2);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.NewestPlan().plan(), plans);
  EXPECT_EQ(job.daemon.num_solves(), solves + 2) << "the back-test sees every window";
  EXPECT_EQ(job.daemon.View().candidates(0).windows(), 3);
}

TEST(AutoDecisionsTest, AnotherIntervalHoldsFromTheNextWindowOn) {
  ConnectedJob job(AutoConfig(1000));
  TrainWindow(job, 0);
  SwitchAll(job);
  const uint64_t plans = job.NewestPlan().plan();
  TrainWindow(job, 1);
  ASSERT_EQ(job.NewestPlan().plan(), plans);
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"every_steps", 10}}}).ok());
  TrainWindow(job, 2);
  EXPECT_EQ(job.NewestPlan().plan(), plans + 1);
  EXPECT_EQ(job.daemon.View().candidates(0).windows(), 3) << "the back-test goes on";
}

TEST(AutoDecisionsTest, ARestartOfTheDaemonDoesNotHastenADecision) {
  ConnectedJob job(AutoConfig(1000));
  TrainWindow(job, 0);
  SwitchAll(job);
  for (int restart = 0; restart < 3; ++restart) {
    const uint64_t plans = job.NewestPlan().plan();
    job.daemon.Restart();
    job.ConnectAll();
    TrainWindow(job, 2 + restart);
    EXPECT_EQ(job.daemon.state(), "IDLE");
    EXPECT_EQ(job.NewestPlan().plan(), plans) << restart;
  }
}

TEST(AutoDecisionsTest, TypicalLoadsSurviveTheDaemon) {
  ConnectedJob job(AutoConfig(1000));
  TrainWindow(job, 0);
  EXPECT_TRUE(job.daemon.typical_loads().empty()) << "one is nothing beside others";
  SwitchAll(job);
  TrainWindow(job, 1);
  EXPECT_EQ(job.daemon.typical_loads().size(), 2u);
  TrainWindow(job, 2, 119);
  EXPECT_EQ(job.daemon.typical_loads().size(), 2u) << "two minutes are not over";
  TrainWindow(job, 3);
  EXPECT_EQ(job.daemon.typical_loads().size(), 4u);
  TrainWindow(job, 4);
  job.daemon.Handle(DrainRequested{absl::Seconds(10)});
  EXPECT_EQ(job.daemon.typical_loads().size(), 5u);
  const size_t writes = job.daemon.typical_load_writes();
  job.daemon.Restart();
  job.daemon.Handle(DrainRequested{absl::Seconds(10)});
  EXPECT_EQ(job.daemon.typical_load_writes(), writes) << "nothing has changed";
  job.daemon.Restart();
  job.ConnectAll();
  TrainWindow(job, 5);
  job.FinishAll();
  EXPECT_EQ(job.daemon.typical_loads().size(), 6u) << "the run has ended";
}

TEST(AutoDecisionsTest, BackingOffSkipsDecisionsAndNoWindowsOfTheBackTest) {
  ConnectedJob job(AutoConfig(20));
  TrainWindow(job, 0);
  ASSERT_EQ(job.daemon.state(), "PREPARING");
  job.daemon.Say(job.ranks[1].session,
                 wire::Nack{1, wire::NackCode::kStagingTooSmall, "1 row free"});
  job.Deliver();
  ASSERT_EQ(job.daemon.state(), "IDLE");
  TrainWindow(job, 1);
  EXPECT_EQ(job.daemon.CountEvents("kept"), 0) << "no decision is due";
  TrainWindow(job, 2);
  EXPECT_THAT(job.daemon.LastReason("kept"), HasSubstr("backing off"));
  EXPECT_EQ(job.daemon.View().candidates(0).windows(), 3);
}

TEST(AutoDecisionsTest, WhatCostsMoreThanItSavesIsKept) {
  Config config = AutoConfig(10);
  config.settings.max_pause = absl::Minutes(10);
  config.costs.intra_bytes_per_s = 1e8;
  TestJob job(config);
  for (FakeRank& rank : job.ranks) rank.identity.weight_bytes = int64_t{1} << 30;  // 10 s
  job.ConnectAll();
  TrainWindow(job, 0);
  EXPECT_EQ(job.NewestPlan().result(), v1::PLAN_RESULT_KEPT);
  EXPECT_THAT(job.NewestPlan().reason(),
              HasSubstr("does not pay for a migration of 8.6 GB (not measured yet"));
}

}  // namespace
}  // namespace eplb::core
