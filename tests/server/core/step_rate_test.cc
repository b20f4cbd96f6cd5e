#include "server/core/step_rate.h"

#include <gtest/gtest.h>

#include "server/core/state.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

// A launch in windows of 10 steps, begun at step 0.
Job Begun() {
  Job job;
  job.current = Incarnation(Topology::Make(TestShape()).value(),
                            RankGrid::Make({.world_size = 3, .num_gpus = 3}).value());
  job.current->report_every = 10;
  BeginSteps(*job.current, absl::Seconds(60), absl::ZeroDuration(), kStart);
  NoteHelloStep(*job.current, 0, kStart);
  return job;
}

TEST(StepRateTest, AStepsTimeIsTheMedianOfTheNewestRises) {
  Job job = Begun();
  EXPECT_EQ(SecondsPerStep(job.current->rate), 0);
  absl::Time now = kStart + absl::Seconds(300);  // a slow first window
  for (int64_t step = 9; step < 100; step += 10, now += absl::Seconds(2)) {
    NoteStep(*job.current, step, now);
  }
  EXPECT_DOUBLE_EQ(SecondsPerStep(job.current->rate), 0.2);
  EXPECT_EQ(ReportInterval(*job.current), absl::Seconds(2));
  EXPECT_EQ(LongestGap(job.current->rate), absl::Seconds(300));
}

TEST(StepRateTest, StepsAdvanceForSixIntervalsAfterARise) {
  Job job = Begun();
  for (int64_t window = 0; window < 4; ++window) {
    NoteStep(*job.current, 10 * window + 9, kStart + (window + 1) * absl::Seconds(4));
  }
  EXPECT_TRUE(StepsAdvance(job, kStart + absl::Seconds(16 + 24)));
  EXPECT_FALSE(StepsAdvance(job, kStart + absl::Seconds(16 + 25)));
}

TEST(StepRateTest, AGapThatCameTwiceIsWaitedForAgainHoweverLongAgo) {
  Job job = Begun();
  absl::Time now = kStart;
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
    NoteStep(*job.current, 10 * window + 9, kStart + (window + 1) * absl::Milliseconds(3));
  }
  EXPECT_TRUE(StepsAdvance(job, kStart + absl::Seconds(5)));
  EXPECT_FALSE(StepsAdvance(job, kStart + absl::Seconds(6)));
}

TEST(StepRateTest, ANewLaunchHasItsPatienceBeforeTwoRises) {
  Job job = Begun();
  EXPECT_TRUE(StepsAdvance(job, kStart + absl::Seconds(60)));
  EXPECT_FALSE(StepsAdvance(job, kStart + absl::Seconds(61)));
  NoteStep(*job.current, 9, kStart + absl::Seconds(1));
  EXPECT_TRUE(StepsAdvance(job, kStart + absl::Seconds(60)));
}

TEST(StepRateTest, ToldAgainOrALittleMoreAtAHelloIsNoRise) {
  Job job = Begun();
  for (int64_t window = 0; window < 4; ++window) {
    NoteStep(*job.current, 10 * window + 9, kStart + window * absl::Seconds(1));
  }
  const absl::Time later = kStart + absl::Seconds(40);
  NoteStep(*job.current, 39, later);
  NoteHelloStep(*job.current, 48, later);
  EXPECT_FALSE(StepsAdvance(job, later));
  NoteHelloStep(*job.current, 49, later);
  EXPECT_TRUE(StepsAdvance(job, later));
}

TEST(StepRateTest, ALongerWindowIsWaitedForBeforeItTakesEffect) {
  Job job = Begun();
  job.current->pace = {.report_every = 160, .from_step = 160};
  for (int64_t window = 0; window < 4; ++window) {
    NoteStep(*job.current, 10 * window + 9, kStart + window * absl::Seconds(1));
  }
  EXPECT_TRUE(StepsAdvance(job, kStart + absl::Seconds(50)));
}

TEST(StepRateTest, ALaunchThatEndedOrNeverCameDoesNotAdvance) {
  EXPECT_FALSE(StepsAdvance(Job{}, kStart));
  Job job = Begun();
  job.current->ending = Ending::kFinal;
  EXPECT_FALSE(StepsAdvance(job, kStart));
}

TEST(StepRateTest, AReportOfAnyRankTellsTheRate) {
  TestJob job;
  job.ConnectAll();
  job.daemon.Advance(absl::Seconds(10));
  job.daemon.Say(job.ranks[2].session, TestReport(0, 9));
  job.daemon.Advance(absl::Seconds(10));
  job.daemon.Say(job.ranks[0].session, TestReport(10, 19));
  job.daemon.Advance(absl::Seconds(10));
  job.daemon.Say(job.ranks[1].session, TestReport(20, 29));
  EXPECT_DOUBLE_EQ(job.daemon.View().step_seconds, 1);
}

}  // namespace
}  // namespace eplb::core
