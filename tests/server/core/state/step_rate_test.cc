#include "server/core/state/step_rate.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "server/core/state/state.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {

namespace {

const absl::Time begun_at = absl::UnixEpoch() + absl::Hours(1);

// A run in windows of 10 steps, begun at step 0.
Job Begun() {
  Job job;
  job.current = Run(Topology::Make(TestShape()).value(),
                    RankGrid::Make({.world_size = 3, .num_gpus = 3}).value());
  job.current->report_every = 10;
  BeginSteps(*job.current, absl::Seconds(60), absl::ZeroDuration(), begun_at);
  NoteHelloStep(*job.current, 0, begun_at);
  return job;
}

TEST(StepRateTest, AStepsTimeIsTheMedianOfTheNewestRises) {
  Job job = Begun();
  EXPECT_EQ(SecondsPerStep(job.current->rate), 0);
  absl::Time now = begun_at + absl::Seconds(300);  // a slow first window
  for (int64_t step = 9; step < 100; step += 10, now += absl::Seconds(2)) {
    NoteStep(*job.current, step, now);
  }
  EXPECT_DOUBLE_EQ(SecondsPerStep(job.current->rate), 0.2);
  EXPECT_EQ(ReportInterval(*job.current), absl::Seconds(2));
  EXPECT_EQ(LongestGap(job.current->rate), absl::Seconds(300));
}

TEST(StepRateTest, ReportsThatWereReadTogetherHaveTheTimeBeforeThem) {
  Job job = Begun();
  absl::Time now = begun_at;
  int64_t step = -1;
  const auto train = [&](int windows, absl::Duration gap) {
    for (int window = 0; window < windows; ++window) {
      NoteStep(*job.current, step += 10, now += gap);
    }
  };
  train(3, absl::Seconds(2));
  train(1, absl::Seconds(24));
  train(11, absl::Microseconds(300));  // 12 windows of 2 s in all
  EXPECT_NEAR(SecondsPerStep(job.current->rate), 0.2, 1e-3);
  train(5, absl::Seconds(2));  // the time before them is no longer known
  EXPECT_NEAR(SecondsPerStep(job.current->rate), 0.2, 1e-3);
  train(100, absl::Milliseconds(2));
  EXPECT_NEAR(SecondsPerStep(job.current->rate), 2e-4, 1e-9) << "short steps";
}

TEST(StepRateTest, WindowsWithoutASwitchShowTheTimeOfAStepAlsoWhereTheyAreFew) {
  Job job = Begun();
  StepRate& rate = job.current->rate;
  absl::Time now = begun_at;
  for (int64_t step = 9; step < 200; step += 10) {
    NoteStep(*job.current, step, now += absl::Seconds(2));
  }
  EXPECT_DOUBLE_EQ(SecondsPerUnswitchedStep(rate), 0.2) << "all had a switch";
  NoteUnswitched(rate, 1.5);
  EXPECT_DOUBLE_EQ(SecondsPerUnswitchedStep(rate), 0.2)
      << "a checkpoint, because a switch adds time";
  NoteUnswitched(rate, 0.05);
  NoteUnswitched(rate, 0.05);
  EXPECT_DOUBLE_EQ(SecondsPerUnswitchedStep(rate), 0.05);
  for (int i = 0; i < 1000; ++i) NoteUnswitched(rate, 0.06);
  EXPECT_DOUBLE_EQ(SecondsPerUnswitchedStep(rate), 0.06);
  EXPECT_LE(rate.unswitched.size(), 16);
}

TEST(StepRateTest, StepsAdvanceForSixIntervalsAfterARise) {
  Job job = Begun();
  for (int64_t window = 0; window < 4; ++window) {
    NoteStep(*job.current, 10 * window + 9, begun_at + (window + 1) * absl::Seconds(4));
  }
  EXPECT_TRUE(StepsAdvance(job, begun_at + absl::Seconds(16 + 24)));
  EXPECT_FALSE(StepsAdvance(job, begun_at + absl::Seconds(16 + 25)));
}

TEST(StepRateTest, AGapThatCameTwiceIsWaitedForAgainHoweverLongAgo) {
  Job job = Begun();
  absl::Time now = begun_at;
  int64_t step = -1;
  const auto train = [&](int windows, absl::Duration gap) {
    for (int window = 0; window < windows; ++window) {
      now += gap;
      NoteStep(*job.current, step += 10, now);
    }
  };
  train(5, absl::Seconds(1));
  train(1, absl::Seconds(60));
  EXPECT_EQ(UsualGap(job.current->rate), absl::Seconds(1));  // once is an accident
  EXPECT_FALSE(StepsAdvance(job, now + absl::Seconds(7)));
  train(40, absl::Seconds(1));
  train(1, absl::Seconds(50));
  train(40, absl::Seconds(1));
  EXPECT_EQ(UsualGap(job.current->rate), absl::Seconds(50));
  EXPECT_TRUE(StepsAdvance(job, now + absl::Seconds(75)));
  EXPECT_FALSE(StepsAdvance(job, now + absl::Seconds(76)));
}

TEST(StepRateTest, ShortIntervalsAreWaitedForAtLeastFiveSeconds) {
  Job job = Begun();
  for (int64_t window = 0; window < 4; ++window) {
    NoteStep(*job.current, 10 * window + 9, begun_at + (window + 1) * absl::Milliseconds(3));
  }
  EXPECT_TRUE(StepsAdvance(job, begun_at + absl::Seconds(5)));
  EXPECT_FALSE(StepsAdvance(job, begun_at + absl::Seconds(6)));
}

TEST(StepRateTest, ANewRunHasItsPatienceBeforeTwoRises) {
  Job job = Begun();
  EXPECT_TRUE(StepsAdvance(job, begun_at + absl::Seconds(60)));
  EXPECT_FALSE(StepsAdvance(job, begun_at + absl::Seconds(61)));
  NoteStep(*job.current, 9, begun_at + absl::Seconds(1));
  EXPECT_TRUE(StepsAdvance(job, begun_at + absl::Seconds(60)));
}

TEST(StepRateTest, ToldAgainOrALittleMoreAtAHelloIsNoRise) {
  Job job = Begun();
  for (int64_t window = 0; window < 4; ++window) {
    NoteStep(*job.current, 10 * window + 9, begun_at + window * absl::Seconds(1));
  }
  const absl::Time later = begun_at + absl::Seconds(40);
  NoteStep(*job.current, 39, later);
  NoteHelloStep(*job.current, 48, later);
  EXPECT_FALSE(StepsAdvance(job, later));
  NoteHelloStep(*job.current, 49, later);
  EXPECT_TRUE(StepsAdvance(job, later));
}

TEST(StepRateTest, ALongerWindowIsWaitedForBeforeItTakesEffect) {
  Job job = Begun();
  job.current->report_interval_change = {.report_every = 160, .from_step = 160};
  for (int64_t window = 0; window < 4; ++window) {
    NoteStep(*job.current, 10 * window + 9, begun_at + window * absl::Seconds(1));
  }
  EXPECT_TRUE(StepsAdvance(job, begun_at + absl::Seconds(50)));
}

TEST(StepRateTest, ARunThatEndedOrNeverCameDoesNotAdvance) {
  EXPECT_FALSE(StepsAdvance(Job{}, begun_at));
  Job job = Begun();
  job.current->ending = Ending::kFinal;
  EXPECT_FALSE(StepsAdvance(job, begun_at));
}

TEST(StepRateTest, AReportOfAnyRankTellsTheRate) {
  ConnectedJob job;
  job.daemon.Advance(absl::Seconds(10));
  job.daemon.Say(job.ranks[2].session, TestReport(0, 9));
  job.daemon.Advance(absl::Seconds(10));
  job.daemon.Say(job.ranks[0].session, TestReport(10, 19));
  job.daemon.Advance(absl::Seconds(10));
  job.daemon.Say(job.ranks[1].session, TestReport(20, 29));
  EXPECT_DOUBLE_EQ(job.daemon.View().step_seconds(), 1);
}

constexpr int64_t kWindows = 4;
constexpr int64_t kFar = int64_t{1} << 61;

// A run of ranks that are connected, with windows of 10 steps.
Run NewRun(int32_t world_size) {
  Run run(Topology::Make(TestShape()).value(),
          RankGrid::Make({.world_size = world_size, .num_gpus = world_size}).value());
  run.report_every = 10;
  run.ranks.resize(static_cast<size_t>(world_size));
  run.num_connected = world_size;
  return run;
}

StepClaim Take(Run& run, int32_t rank, int64_t step, StepClaim claim) {
  if (claim == StepClaim::kBelieved) {
    run.ranks[rank].step = step;
    Advance(run.front, rank, step);
  }
  return claim;
}
StepClaim Hello(Run& run, int32_t rank, int64_t step) {
  return Take(run, rank, step, CheckHello(run, rank, step, kWindows));
}
StepClaim Report(Run& run, int32_t rank, int64_t step) {
  return Take(run, rank, step, EvaluateStep(run, rank, step, kWindows));
}

TEST(StepClaimsTest, AFirstHelloIsBelievedWithTheFirstRankThatAgrees) {
  core::Run run = NewRun(4);
  EXPECT_EQ(Hello(run, 0, kFar), StepClaim::kUnproved);
  EXPECT_EQ(Hello(run, 1, 5000), StepClaim::kUnproved);
  EXPECT_EQ(Hello(run, 2, 5041), StepClaim::kUnproved);
  EXPECT_EQ(run.front.first, -1);
  EXPECT_EQ(Hello(run, 3, 5040), StepClaim::kBelieved);
  EXPECT_EQ(run.front.first, 5040);
  EXPECT_EQ(run.front.second, 5000);
  EXPECT_EQ(run.ranks[1].step, 5000);
  EXPECT_EQ(run.ranks[0].step, 0);
  EXPECT_EQ(Report(run, 0, kFar + 10), StepClaim::kLeap);
}

TEST(StepClaimsTest, AJobOfOneRankIsBelieved) {
  core::Run run = NewRun(1);
  EXPECT_EQ(Hello(run, 0, 5000), StepClaim::kBelieved);
  EXPECT_EQ(Report(run, 0, 9000), StepClaim::kBelieved);
}

TEST(StepClaimsTest, ARankThatIsTheFirstToComeIsBelievedOnceItGoesOn) {
  core::Run run = NewRun(4);
  EXPECT_EQ(Hello(run, 0, 5000), StepClaim::kUnproved);
  EXPECT_EQ(Hello(run, 0, 5010), StepClaim::kUnproved) << "a Hello proves nothing by itself";
  EXPECT_EQ(Report(run, 0, 4960), StepClaim::kUnproved) << "kept while it was away";
  EXPECT_EQ(Report(run, 0, 6000), StepClaim::kLeap);
  EXPECT_EQ(Report(run, 0, 6010), StepClaim::kBelieved);
}

TEST(StepClaimsTest, OneThatLiesAmongFourHurtsOnlyItselfWhenReportsOfAllWereLost) {
  core::Run run = NewRun(4);
  for (int32_t rank = 0; rank < 4; ++rank) Hello(run, rank, 0);
  for (int64_t step = kFar; step < kFar + 100; step += 10) {
    EXPECT_EQ(Report(run, 3, step), StepClaim::kLeap);
  }
  EXPECT_EQ(Report(run, 0, 5009), StepClaim::kLeap);
  EXPECT_EQ(Report(run, 1, 5009), StepClaim::kBelieved);
  EXPECT_EQ(Report(run, 2, 5009), StepClaim::kBelieved);
  EXPECT_EQ(Report(run, 0, 5019), StepClaim::kBelieved);
  EXPECT_EQ(Report(run, 3, kFar + 110), StepClaim::kLeap);
  EXPECT_EQ(run.front.first, 5019);
}

TEST(StepClaimsTest, ALeapIsBelievedOfARankLeftAloneThatGoesOn) {
  core::Run run = NewRun(3);
  for (int32_t rank = 0; rank < 3; ++rank) Hello(run, rank, 0);
  EXPECT_EQ(Report(run, 0, 1009), StepClaim::kLeap);
  EXPECT_EQ(Report(run, 0, 1019), StepClaim::kLeap);
  run.num_connected = 1;
  EXPECT_EQ(Report(run, 0, 2009), StepClaim::kLeap);
  EXPECT_EQ(Report(run, 0, 2019), StepClaim::kBelieved);
}

TEST(StepClaimsTest, WhatWasToldOfARunWhoseStepNobodyKnewIsForgotten) {
  core::Run run = NewRun(3);
  EXPECT_EQ(Hello(run, 0, 5000), StepClaim::kUnproved);
  NoteHelloStep(run, 0, absl::UnixEpoch());
  EXPECT_EQ(Hello(run, 1, 5000), StepClaim::kBelieved);
  EXPECT_TRUE(run.rate.told.empty());
}

TEST(StepClaimsTest, AFirstHelloThatLiesDoesNotStopTheJobsSteps) {
  TestJob job;
  job.ranks[0].identity.step = kFar;
  for (const int32_t rank : {1, 2}) job.ranks[rank].identity.step = 1000;
  job.ConnectAll();
  EXPECT_EQ(job.daemon.View().step(), 1000);
  job.Train({1, 2}, 1000, 60);
  EXPECT_EQ(job.daemon.View().step(), 1599);
  EXPECT_NE(job.daemon.View().stalled(), "hung");
}

TEST(StepClaimsTest, AFirstReportThatLiesDoesNotStopTheJobsSteps) {
  TestJob job;
  job.Connect(0);
  job.daemon.Say(job.ranks[0].session, TestReport(kFar, kFar + 9));
  EXPECT_EQ(
      job.daemon.LastReason("report_ahead"),
      "rank 0 reports steps 2305843009213693952..2305843009213693961, no other rank has reported "
      "a step near it; such reports of it are left out");
  job.Connect(1);
  job.Connect(2);
  job.Deliver();
  job.Train({1, 2}, 0, 10);
  EXPECT_EQ(job.daemon.View().step(), 99);
}

TEST(StepClaimsTest, WindowsFromBeforeItsHelloAreNoNewStepsOfTheFirstRankToComeBack) {
  TestJob job;
  for (FakeRank& rank : job.ranks) rank.identity.step = 5000;
  job.Connect(0);
  for (int64_t step = 4900; step < 5000; step += 10) {
    job.daemon.Say(job.ranks[0].session, TestReport(step, step + 9));
  }
  EXPECT_EQ(job.daemon.CountEvents("report_ahead"), 0);
  EXPECT_EQ(job.daemon.View().step(), 0);
  job.Connect(1);
  EXPECT_EQ(job.daemon.View().step(), 5000);
}

TEST(StepClaimsTest, AnAnswerToWhatIsNotInFlightTellsNoStep) {
  ConnectedJob job;
  job.Train({0, 1, 2}, 0, 5);
  for (int64_t step = 60; step < 5000; step += 30) {
    job.daemon.Say(job.ranks[1].session,
                   wire::Failed{0, wire::FailedCode::kSuperseded, "not held", step});
    job.daemon.Say(job.ranks[1].session, wire::Applied{0, {}, step, 0, 0});
  }
  EXPECT_EQ(job.daemon.View().step(), 49);
}

TEST(StepClaimsTest, AnAnswerFarAheadOfAllOthersTellsNoStep) {
  PreparedJob job(Exchanged({0, 1}));
  ASSERT_TRUE(job.ranks[1].ready.has_value());
  job.daemon.Say(job.ranks[1].session, wire::Failed{job.ranks[1].ready->version,
                                                    wire::FailedCode::kTransfer, "late", kFar});
  EXPECT_EQ(job.daemon.View().step(), 9);
}

}  // namespace

}  // namespace eplb::core
