#include "server/core/ranks/stall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

using ::testing::HasSubstr;

TEST(StallTest, ARankThatStopsReportingIsNamedWithHowFarItIsBehind) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 2);
  job.Train({0, 2}, 20, 11);
  const v1::JobStatus view = job.daemon.View();
  EXPECT_EQ(view.state(), v1::JOB_STATE_IDLE);
  EXPECT_EQ(view.coverage(), 1);
  EXPECT_DOUBLE_EQ(view.coverage_now(), 2.0 / 3);
  EXPECT_EQ(view.stalled(), "windows");
  EXPECT_THAT(view.stalled_reason(), HasSubstr("no load window is complete since step 19"));
  EXPECT_THAT(view.stalled_reason(), HasSubstr("rank 1 is 100 steps behind with its reports"));
  EXPECT_EQ(job.daemon.CountEvents("stalled"), 1);
  job.Train({0, 1, 2}, 130, 7);
  EXPECT_EQ(job.daemon.View().stalled(), "");
  EXPECT_EQ(job.daemon.View().coverage_now(), 1);
  EXPECT_EQ(job.daemon.CountEvents("stalled"), 1);
  EXPECT_EQ(job.daemon.CountEvents("stalled_over"), 1);
}

TEST(StallTest, ARankThatIsRefusedIsNamedWithWhy) {
  Config config = TestConfig();
  config.session_grace = absl::Hours(1);
  ConnectedJob job(config);
  job.Train({0, 1, 2}, 0, 2);
  job.Disconnect(1);
  wire::Hello hello = TestHello(1);
  hello.highest_version = int64_t{1} << 61;
  (void)job.daemon.Join(hello);
  job.Train({0, 2}, 20, 12);
  EXPECT_EQ(job.daemon.View().stalled(), "windows");
  EXPECT_THAT(job.daemon.View().stalled_reason(),
              HasSubstr("rank 1 is not connected; rank 1 was refused: hello: highest_version is "));
}

TEST(StallTest, WindowsThatNeverCompleteAfterTheStartAreToldToo) {
  ConnectedJob job;
  job.Train({0, 1}, 0, 12);
  EXPECT_EQ(job.daemon.View().stalled(), "windows");
  EXPECT_THAT(job.daemon.View().stalled_reason(), HasSubstr("no load window is complete yet"));
}

TEST(StallTest, ARankThatReportsStepsFarAheadHurtsOnlyItself) {
  ConnectedJob job;
  for (int64_t step = 1'000'000; step < 1'000'040; step += 10) {
    job.daemon.Say(job.ranks[1].session, TestReport(step, step + 9));
  }
  job.Train({0, 1, 2}, 0, 30);
  EXPECT_EQ(job.daemon.View().last_window_last_step(), 299);
  EXPECT_EQ(job.daemon.View().step(), 299);
  EXPECT_EQ(job.daemon.View().windows_given_up(), 0);
  EXPECT_EQ(job.daemon.core().counters().reports_ahead, 4);
  EXPECT_EQ(job.daemon.CountEvents("report_ahead"), 1);
  EXPECT_THAT(job.daemon.LastReason("report_ahead"),
              HasSubstr("rank 1 reports steps 1000000..1000009, the other ranks are at most at "
                        "step 0"));
}

// Reports of all ranks were dropped for long, on streams that stayed open.
TEST(StallTest, StepsFarAheadThatTwoRanksReportAreBelieved) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 5);
  job.Train({0, 1, 2}, 1000, 5);
  EXPECT_EQ(job.daemon.View().step(), 1049);
  EXPECT_EQ(job.daemon.View().last_window_last_step(), 1049);
  EXPECT_EQ(job.daemon.core().counters().reports_ahead, 1);  // the first report
}

TEST(StallTest, AHelloFarAheadOfAllOthersHurtsOnlyItsRank) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 5);
  job.Disconnect(1);
  job.ranks[1].identity.step = 1'000'000;
  job.Connect(1);
  EXPECT_EQ(job.daemon.View().step(), 49);
  job.ranks[1].identity.step = 49;
  job.Train({0, 1, 2}, 50, 5);
  EXPECT_EQ(job.daemon.View().last_window_last_step(), 99);
}

TEST(StallTest, StepsThatStopWhileRanksAreConnectedAreTold) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 5);
  job.daemon.Advance(absl::Seconds(31));
  job.daemon.Advance(absl::Seconds(5));
  EXPECT_EQ(job.daemon.View().stalled(), "hung");
  EXPECT_THAT(job.daemon.View().stalled_reason(),
              HasSubstr("no rank reported a step after 49 for 36s, a window of 10 steps took 1s"));
}

TEST(StallTest, ARunThatNeverReportsAStepIsToldAfterASlowStart) {
  ConnectedJob job;
  job.daemon.Advance(absl::Minutes(29));
  job.daemon.Advance(absl::Seconds(6));
  EXPECT_EQ(job.daemon.View().stalled(), "");
  job.daemon.Advance(absl::Minutes(1));
  job.daemon.Advance(absl::Seconds(6));
  EXPECT_EQ(job.daemon.View().stalled(), "hung");
  EXPECT_EQ(job.daemon.View().stalled_reason(),
            "no rank reported a step after 0 for 30m12s; 3 of 3 ranks are connected");
  job.Train({0, 1, 2}, 0, 10);
  EXPECT_EQ(job.daemon.View().stalled(), "");
}

TEST(StallTest, DecisionsThatFailAgainAndAgainAreToldWithTheNewestReason) {
  ConnectedJob job;
  int failed = 0;
  int64_t step = 0;
  for (; failed < 3 && step < 1000; step += 10) {
    job.daemon.Advance(absl::Seconds(1));
    job.Report(step, step + 9);
    failed += job.daemon.AnswerSolve(absl::InternalError("no memory")) ? 1 : 0;
  }
  ASSERT_EQ(failed, 3);
  EXPECT_EQ(job.daemon.View().stalled(), "");
  job.daemon.AdvanceSeconds(6);
  EXPECT_EQ(job.daemon.View().stalled(), "decisions");
  EXPECT_THAT(job.daemon.View().stalled_reason(),
              HasSubstr("the newest 3 decisions failed, the newest: "));
  EXPECT_THAT(job.daemon.View().stalled_reason(), HasSubstr("no memory"));
  job.Train({0, 1, 2}, step, 12);
  EXPECT_EQ(job.daemon.View().stalled(), "");
}

TEST(StallTest, ALostRunWhoseOtherRanksTrainOnIsTold) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 3);
  job.Disconnect(2);
  job.daemon.Advance(TestConfig().session_grace + absl::Seconds(1));
  ASSERT_EQ(job.daemon.state(), "LOST");
  job.Train({0, 1}, 30, 8);
  EXPECT_EQ(job.daemon.View().stalled(), "lost");
  EXPECT_THAT(job.daemon.View().stalled_reason(), HasSubstr("2 of 3 ranks train on here"));
}

TEST(StallTest, CompleteWindowsWithoutADecisionAreToldWithWhatForbidsIt) {
  Config config = TestConfig();
  config.min_coverage = 0.6;
  config.session_grace = absl::Hours(1);
  ConnectedJob job(config);
  job.Train({0, 1, 2}, 0, 1);
  job.Disconnect(2);
  job.Train({0, 1}, 10, 12);
  EXPECT_EQ(job.daemon.state(), "IDLE");
  EXPECT_EQ(job.daemon.View().stalled(), "decisions");
  EXPECT_THAT(job.daemon.View().stalled_reason(), HasSubstr("has 2 of 3 ranks connected"));
}

TEST(StallTest, APausedJobIsNotStalledForWantOfDecisions) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 1);
  ASSERT_TRUE(job.daemon.Ask(Pause{}).ok());
  job.Train({0, 1, 2}, 10, 20);
  EXPECT_EQ(job.daemon.View().stalled(), "");
}

TEST(StallTest, ProposalsThatAreWithdrawnAgainAndAgainAreToldWithTheNewestReason) {
  ConnectedJob job;
  for (int64_t step = 0; job.daemon.CountEvents("withdrawn") < 3 && step < 1000; step += 10) {
    job.daemon.Advance(absl::Seconds(1));
    job.Report(step, step + 9);
    if (!job.daemon.AnswerSolve(Exchanged({0}))) continue;
    job.Deliver();
    ASSERT_TRUE(job.VoteAndDeliver(step + 9, false));
  }
  ASSERT_EQ(job.daemon.CountEvents("withdrawn"), 3);
  job.daemon.AdvanceSeconds(6);
  EXPECT_EQ(job.daemon.View().stalled(), "withdrawn");
  EXPECT_THAT(job.daemon.View().stalled_reason(),
              HasSubstr("3 of the newest 3 proposals were withdrawn, the newest: "));
  EXPECT_THAT(job.daemon.View().stalled_reason(), HasSubstr("decisions will be skipped"));
}

TEST(StallTest, AStoreThatTakesNoWritesIsToldAndSoIsItsReturn) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 1);
  job.daemon.store_works = false;
  job.Report(10, 19);
  job.Report(20, 29);
  job.daemon.AnswerSolve(Exchanged({0}));
  job.daemon.AdvanceSeconds(6);
  EXPECT_EQ(job.daemon.View().stalled(), "store");
  EXPECT_THAT(job.daemon.View().stalled_reason(), HasSubstr("disk full"));
  job.daemon.store_works = true;
  job.daemon.AdvanceSeconds(12);
  EXPECT_EQ(job.daemon.View().stalled(), "");
  EXPECT_EQ(job.daemon.CountEvents("stalled_over"), 1);
}

TEST(StallTest, ARunThatTrainsAndOneThatFinishedAreNotStalled) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 30);
  EXPECT_EQ(job.daemon.View().stalled(), "");
  job.FinishAll();
  for (int second = 0; second < 60; ++second) job.daemon.Advance(absl::Seconds(10));
  EXPECT_EQ(job.daemon.View().stalled(), "");
  EXPECT_EQ(job.daemon.CountEvents("stalled"), 0);
}

TEST(StallTest, ARunThatWaitsForMoreThanAMinuteIsToldWithWhatItWaitsFor) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 3);
  wire::Hello hello = TestHello(0);
  hello.run_id = "run-2";
  hello.nonce = 200;
  (void)job.daemon.Join(hello);
  job.Train({0, 1, 2}, 30, 30);
  EXPECT_EQ(job.daemon.View().stalled(), "");
  job.Train({0, 1, 2}, 330, 40);
  EXPECT_EQ(job.daemon.View().run_id(), "run-1");
  EXPECT_EQ(job.daemon.View().stalled(), "candidate");
  EXPECT_THAT(job.daemon.View().stalled_reason(),
              HasSubstr("run run-2 is not balanced, 1 of 3 ranks are registered for 1m"));
  EXPECT_THAT(job.daemon.View().stalled_reason(), HasSubstr("it waits for ranks 1, 2 to register"));
}

TEST(StallTest, RanksThatAreRefusedForGoodAreToldForTenMinutesAlsoOfAJobThatHasFinished) {
  ConnectedJob job;
  job.FinishAll();
  wire::Hello hello = TestHello(0);
  hello.nonce = 200;
  (void)job.daemon.Join(hello);
  job.daemon.AdvanceSeconds(6);
  EXPECT_EQ(job.daemon.View().state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(job.daemon.View().stalled(), "refused");
  EXPECT_THAT(job.daemon.View().stalled_reason(), HasSubstr("rank 0 was refused: "));
  for (int minute = 0; minute < 12; ++minute) job.daemon.Advance(absl::Minutes(1));
  EXPECT_EQ(job.daemon.View().stalled(), "");
}

}  // namespace
}  // namespace eplb::core
